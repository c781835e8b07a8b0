"""Small files in exactly the official schemas, at real N, with made-up content.

    python -m tests.dataset_files sprout 2000 PATH
    python scripts/prepare_data.py dataset=sprout source=PATH

Prompts have topics, and every LLM is better at some of them, so that there is something to learn.
Origins start with "synthetic", by which the loaders mark every table made of them.
"""

import pathlib
import sys
from collections.abc import Callable

import numpy as np
import polars as pl

ROUTERBENCH_LLMS = (
    "WizardLM/WizardLM-13B-V1.2", "claude-instant-v1", "claude-v1", "claude-v2",
    "gpt-3.5-turbo-1106", "gpt-4-1106-preview", "meta/code-llama-instruct-34b-chat",
    "meta/llama-2-70b-chat", "mistralai/mistral-7b-chat", "mistralai/mixtral-8x7b-chat",
    "zero-one-ai/Yi-34B-Chat",
)  # fmt: skip
SPROUT_LLMS = (
    "aws-claude-3-5-sonnet-v1", "aws-titan-text-premier-v1", "openai-gpt-4o", "openai-gpt-4o-mini",
    "openai-o3-mini", "wxai-granite-3-2b-instruct-8k-max-tokens",
    "wxai-granite-3-8b-instruct-8k-max-tokens", "wxai-llama-3-1-70b-instruct",
    "wxai-llama-3-1-8b-instruct", "wxai-llama-3-2-1b-instruct", "wxai-llama-3-2-3b-instruct",
    "wxai-llama-3-3-70b-instruct", "wxai-llama-3-405b-instruct", "wxai-mixtral-8x7b-instruct-v01",
)  # fmt: skip
# Appendix A.1 of EmbedLLM's paper (arXiv 2410.02223): 122 names, though it speaks of 112.
PAPER_NAMES = """
meta-llama/LlamaGuard-7b meta-llama/Llama-2-13b-chat-hf 01-ai/Yi-34B-Chat
meta-llama/Llama-2-70b-chat-hf WizardLM/WizardLM-70B-V1.0 allenai/tulu-2-dpo-70b
lmsys/vicuna-13b-v1.5 lmsys/vicuna-33b-v1.3 Qwen/Qwen-14B-Chat upstage/SOLAR-10.7B-Instruct-v1.0
openchat/openchat-3.5-0106 openchat/openchat-3.5 berkeley-nest/Starling-LM-7B-alpha
HuggingFaceH4/zephyr-7b-beta TheBloke/tulu-30B-fp16 mistralai/Mistral-7B-Instruct-v0.1
tiiuae/falcon-40b-instruct lmsys/vicuna-13b-v1.5-16k codellama/CodeLlama-34b-Instruct-hf
TheBloke/WizardLM-13B-V1.2-GGUF lmsys/vicuna-7b-v1.5 NousResearch/Nous-Hermes-13b
project-baize/baize-v2-13b lmsys/vicuna-7b-v1.5-16k mosaicml/mpt-30b-instruct
meta-llama/Llama-2-7b-chat-hf TheBloke/koala-13B-HF nomic-ai/gpt4all-13b-snoozy
h2oai/h2ogpt-gm-oasst1-en-2048-open-llama-13b mosaicml/mpt-7b-chat databricks/dolly-v2-12b
stabilityai/stablelm-tuned-alpha-7b OpenAssistant/oasst-sft-4-pythia-12b-epoch-3.5
deepseek-ai/deepseek-llm-67b-chat NousResearch/Nous-Hermes-2-Yi-34B CausalLM/34b-beta
SUSTech/SUS-Chat-34B SUSTech/SUS-Chat-72B Qwen/Qwen-72B Intel/neural-chat-7b-v3-3
ibivibiv/alpaca-dragon-72b-v1 JaeyeonKang/CCK-Asura-v1 ConvexAI/Luminex-34B-v0.2
ConvexAI/Luminex-34B-v0.1 CorticalStack/pastiche-crown-clown-7b-dare-dpo
eren23/ogno-monarch-jaskier-merge-7b-OH-PREF-DPO bardsai/jaskier-7b-dpo-v5.6
FelixChao/Scorpio-7B dfurman/HermesBagel-34B-v0.1 kevin009/llamaRAGdrama sail/Sailor-7B
AiMavenAi/Prometheus-1.3 Q-bert/Optimus-7B cognitivecomputations/yayi2-30b-llama
zhengr/MixTAO-7Bx2-MoE-v8.1 fblgit/UNA-SimpleSmaug-34b-v1beta
mistralai/Mixtral-8x7B-Instruct-v0.1 microsoft/Orca-2-13b EleutherAI/pythia-12b
cloudyu/Mixtral-11Bx2-MoE-19B rishiraj/CatPPT-base Deci/DeciLM-7B microsoft/phi-2
scb10x/typhoon-7b 01-ai/Yi-6B-200K 01-ai/Yi-6B TigerResearch/tigerbot-13b-base
augmxnt/shisa-base-7b-v1 microsoft/phi-1.5 golaxy/gowizardlm bigscience/bloom-7b1
mlabonne/AlphaMonarch-7B CultriX/NeuralTrix-bf16 shadowml/MBeagleX-7B yam-peleg/Experiment26-7B
deepseek-ai/deepseek-math-7b-instruct meta-math/MetaMath-Mistral-7B
kyujinpy/Sakura-SOLRCA-Math-Instruct-DPO-v1 FelixChao/llama2-13b-math1.2
Plaban81/Moe-4x7b-math-reason-code MaziyarPanahi/WizardLM-Math-70B-v0.1
abhishek/zephyr-beta-math meta-math/MetaMath-Llemma-7B EleutherAI/llemma-34b
EleutherAI/llemma-7b FelixChao/vicuna-7B-physics Harshvir/Llama-2-7B-physics
FelixChao/vicuna-7B-chemical BioMistral/BioMistral-7B BioMistral/BioMistral-7B-DARE
PharMolix/BioMedGPT-LM-7B Biomimicry-AI/ANIMA-Nectar-v2 codellama/CodeLlama-7b-hf
codellama/CodeLlama-13b-Instruct-hf deepseek-ai/deepseek-coder-1.3b-base
deepseek-ai/deepseek-coder-6.7b-instruct OpenBuddy/openbuddy-codellama2-34b-v11.1-bf16
TheBloke/CodeLlama-70B-Instruct-AWQ AdaptLLM/medicine-chat AdaptLLM/medicine-LLM
AdaptLLM/medicine-LLM-13B Writer/palmyra-med-20b SciPhi/SciPhi-Self-RAG-Mistral-7B-32k
Neko-Institute-of-Science/metharme-7b Neko-Institute-of-Science/pygmalion-7b
SciPhi/SciPhi-Mistral-7B-32k shleeeee/mistral-ko-tech-science-v1
codefuse-ai/CodeFuse-DeepSeek-33B WizardLM/WizardCoder-Python-34B-V1.0 bigcode/octocoder
meta-llama/Meta-Llama-3-8B meta-llama/Meta-Llama-3-8B-Instruct meta-llama/Meta-Llama-3-70B
meta-llama/Meta-Llama-3-70B-Instruct meta-llama/Meta-Llama-Guard-2-8B Qwen/Qwen1.5-32B-Chat
Qwen/Qwen1.5-4B-Chat Qwen/Qwen1.5-0.5B-Chat Qwen/Qwen1.5-7B-Chat Nexusflow/Starling-LM-7B-beta
google/gemma-7b-it google/gemma-2b-it
"""
EMBEDLLM_PAPER = tuple(PAPER_NAMES.split())
EMBEDLLM_LLMS = EMBEDLLM_PAPER[:112]
TOPICS = tuple(
    words.split()
    for words in (
        "sum even number prime fraction triangle integral product root matrix",
        "python function loop string list compile integer variable recursion array",
        "king war treaty empire century revolution parliament battle colony senate",
        "cell protein enzyme virus blood heart tissue gene nerve hormone",
        "contract court statute plaintiff appeal tort liability judge verdict clause",
        "poem novel verse author rhyme drama metaphor stanza narrator sonnet",
    )
)


def topics(count: int, seed: int = 0) -> np.ndarray:
    """Return the topic [P] of every made-up prompt."""
    return np.random.default_rng([seed, 1]).integers(0, len(TOPICS), count)


def prompts(count: int, seed: int = 0) -> list[str]:
    """Return distinct prompts with the line breaks, commas and quotes that CSVs trip over."""
    rng = np.random.default_rng(seed)
    return [
        f'Question {k}, "quoted":\n{" ".join(rng.choice(TOPICS[topic], 8))}?\n\nA) yes, B) no'
        for k, topic in enumerate(topics(count, seed))
    ]


def chances(count: int, servers: int, seed: int = 0) -> np.ndarray:
    """Return the probability [P, N] that a server answers a prompt correctly: by its topic."""
    skill = np.random.default_rng([seed, 2]).uniform(0.1, 0.9, (len(TOPICS), servers))
    return skill[topics(count, seed)]


def routerbench_frame(count: int = 12, seed: int = 0) -> pl.DataFrame:
    """Return RouterBench's columns: sample_id, prompt, eval_name, scores, responses, costs."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[object]] = {
        "sample_id": [f"synthetic.dev.{k}" for k in range(count)],
        "prompt": [repr([text]) for text in prompts(count, seed)],
        "eval_name": ["synthetic"] * count,
    }
    right = rng.random((count, len(ROUTERBENCH_LLMS))) < chances(count, len(ROUTERBENCH_LLMS), seed)
    for j, llm in enumerate(ROUTERBENCH_LLMS):
        columns[llm] = right[:, j].astype(float).tolist()
    for llm in ROUTERBENCH_LLMS:
        columns[f"{llm}|model_response"] = [
            f"['{answer}']" for answer in rng.choice(["A", "B"], count)
        ]
    for llm in ROUTERBENCH_LLMS:
        columns[f"{llm}|total_cost"] = rng.uniform(1e-5, 1e-2, count).tolist()
    columns["oracle_model_to_route_to"] = [ROUTERBENCH_LLMS[0]] * count
    return pl.DataFrame(columns)


def write_embedllm(
    folder: pathlib.Path, count: int = 20, seed: int = 0
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Write train.csv, val.csv and test.csv; return labels [P, 112] and the prompts [P]."""
    rng = np.random.default_rng(seed)
    shape = (count, len(EMBEDLLM_LLMS))
    labels = (rng.random(shape) < chances(*shape, seed)).astype(int)
    texts = prompts(count, seed)
    cuts = (0, count // 2, 3 * count // 4, count)
    for part, first, last in zip(("train", "val", "test"), cuts[:-1], cuts[1:], strict=True):
        rows = [(i, j) for i in range(first, last) for j in range(len(EMBEDLLM_LLMS))]
        columns = {
            "prompt_id": [str(i) for i, _ in rows],
            "model_id": [str(j) for _, j in rows],
            "model_name": [EMBEDLLM_LLMS[j] for _, j in rows],
            "category": ["synthetic-mmlu"] * len(rows),
            "prompt": [texts[i] for i, _ in rows],
            "label": [int(labels[i, j]) for i, j in rows],
        }
        pl.DataFrame(columns).write_csv(folder / f"{part}.csv")
    return labels.astype(float), tuple(texts)


def write_sprout(folder: pathlib.Path, count: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    """Write the three splits under data/; return scores and tokens, each [P, 14], P = count."""
    rng = np.random.default_rng(seed)
    shape = (count, len(SPROUT_LLMS))
    truth = {
        "score": rng.binomial(4, chances(*shape, seed)) / 4.0,
        "num_input_tokens": rng.integers(10, 400, shape),
        "num_output_tokens": rng.integers(1, 900, shape),
    }
    texts, tokens = prompts(count, seed), ("num_input_tokens", "num_output_tokens")
    cuts = (0, count // 2, 3 * count // 4, count)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for part, first, last in zip(("train", "validation", "test"), cuts[:-1], cuts[1:], strict=True):
        rows = range(first, last)
        frame = pl.DataFrame(
            {
                "key": [str(i - first) for i in rows],
                "dataset": ["synthetic-gsm8k"] * len(rows),
                "dataset level": ["none"] * len(rows),
                "dataset idx": list(rows),
                "prompt": [texts[i] for i in rows],
                "golden_answer": ["A"] * len(rows),
            }
        ).with_columns(
            pl.Series(
                llm,
                [
                    {key: truth[key][i, j].item() for key in tokens}
                    | {"response": "a long response", "score": float(truth["score"][i, j])}
                    for i in rows
                ],
            )
            for j, llm in enumerate(SPROUT_LLMS)
        )
        frame.write_parquet(folder / "data" / f"{part}-00000-of-00001.parquet")
    return truth


def write(name: str, folder: pathlib.Path, count: int) -> None:
    """Write a dataset's files into a folder.

    Args:
        name: `routerbench`, `embedllm` or `sprout`.
        folder: created if it does not exist.
        count: prompts, at least 12.
    """
    makers: dict[str, Callable[[pathlib.Path, int], object]] = {
        "routerbench": lambda where, many: routerbench_frame(many).write_csv(
            where / "synthetic_train.csv"
        ),
        "embedllm": write_embedllm,
        "sprout": write_sprout,
    }
    folder.mkdir(parents=True, exist_ok=True)
    makers[name](folder, count)


if __name__ == "__main__":
    write(sys.argv[1], pathlib.Path(sys.argv[3]), int(sys.argv[2]))
