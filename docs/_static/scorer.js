// Order of the search's results: pages whose title or address has the words of the question come
// first, then pages that explain before those that list. Sphinx puts this before its own search.
const PLACES = {start: 6, how_to: 8, concepts: 4, results: 3, reference: 2, gallery: -4, notebook: -6, tables: -14};
// What people ask for under another name.
const NAMES = {
  "arena": "arena board leaderboard benchmark compare policies",
  "concepts/model": "regret utility queue",
  "concepts/routing": "cost price dollars usd",
  "how_to/add_a_dataset": "data prompts table csv own",
  "how_to/add_user_or_service_dynamics": "abandonment patience impatient delay outage",
  "how_to/decide_from_a_log": "conversation logs replay production off-policy",
  "how_to/read_a_result": "confidence interval significance export figure latex paper",
  "how_to/record_what_users_feel": "waiting time latency satisfaction",
  "how_to/run_a_study": "change key rate arrival seeds horizon command",
  "how_to/run_a_sweep": "slurm cluster ray parallel resume grid",
  "how_to/use_a_gpu": "cuda accelerator nvidia memory",
  "reference/env": "gymnasium gym reinforcement learning rl environment",
  "results/retries": "retry retrial fallback repeat",
  "start/index": "install pip begin quickstart",
};
const stems = (text) => text.toLowerCase().split(/[^\p{L}\p{N}]+/u)
  .filter((word) => word && !stopwords.has(word)).map((word) => new Stemmer().stemWord(word));
var Scorer = {
  score: ([docname, title, anchor, , score]) => {
    const asked = stems(new URLSearchParams(location.search).get("q") ?? "");
    const share = (text) => {
      const words = stems(text);
      return asked.filter((one) => words.includes(one)).length / Math.max(asked.length, 1);
    };
    const named = Math.max(share(`${title} ${docname}`), share(NAMES[docname] ?? ""));
    return score + 40 * named - (anchor ? 10 : 0) + (PLACES[docname.split("/")[0]] ?? 0);
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
