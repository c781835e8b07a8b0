"""The page in a real Chromium: drawn, sorted, filtered and reached, without a network."""

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from absent import skip_or_fail
from fabricated import fabricate

pytest.importorskip("bokeh")
pytest.importorskip("itables")
webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

from cqbjax.results.files import StoredPoint  # noqa: E402
from reproduction import extracts  # noqa: E402
from reproduction.page import build  # noqa: E402
from reproduction.paper import catalogue, claims, comparison  # noqa: E402

pytestmark = pytest.mark.slow  # a browser starts for them
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (400, 1600)
PATHS = [Path(__file__).parents[1], Path(__file__).parents[2]]
MOST_BYTES = 2_000_000
ROUTERS = ("optimal", "acqb_cl", "acqb", "random", "zero", "knn", "routerdc")
SLICE = {
    "experiment": "routerbench", "source": "RouterBench slice", "stand_in": "a made-up slice",
    "provenance": "stand-in", "num_servers": 11, "slackness": "",
}  # fmt: skip
# What a browser shows lies in shadow roots, which a query of the document does not enter.
DEEP = """
function deep(node, words) {
  let found = [...node.querySelectorAll(words)];
  for (const one of node.querySelectorAll('*'))
    if (one.shadowRoot) found = found.concat(deep(one.shadowRoot, words));
  return found;
}
"""


def store(labels, rates, **attributes):
    point = fabricate(labels, rates, 6, 400, **attributes)
    return StoredPoint(point, {"point": f"K={point.attrs['K']}", "varied": {}, "seconds": 1.5}, "")


def studies():
    config = {"table_rounds": [200, 400], "title": "Synthetic data"}
    offline = config | {"queue": "length", "title": "RouterBench"}
    labels = ("optimal", "acqb", "cqb_eps", "random")
    made = [
        extracts.extract([store(labels, (0.7,), K=size) for size in (1, 2)], config),
        extracts.extract([store(ROUTERS, (0.5, 0.6, 0.7), **SLICE)], offline),
    ]
    return {one.notes["name"]: one for one in made}


def write(path):
    """Write the page of two fabricated studies."""
    made, listed = studies(), catalogue.load_studies()
    compared = comparison.compare(made, listed)
    judged = claims.judge_all(made, compared, Path(path).parent)
    return build.build(made, compared, judged, listed, Path(path))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page."""
    return write(tmp_path_factory.mktemp("page") / "index.html")


@pytest.fixture(scope="module")
def browser(page):
    """A headless Chromium that has opened the page."""
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        skip_or_fail(f"no Chromium with its chromedriver: looked for {', '.join(BROWSERS)}")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # The driver does not wait for the end of a load, which it may miss: `wait_until` does.
    options.page_load_strategy = "none"
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(driver)
    opened = webdriver.Chrome(options=options, service=service)
    try:
        opened.set_window_size(1600, 1000)
        opened.get(page.as_uri())
        wait_until_ready(opened)
        yield opened
    finally:
        opened.quit()


def open_in_new_tab(browser, page):
    """Open the page in a new tab, which runs in a separate process."""
    browser.switch_to.new_window("tab")
    browser.get(page.as_uri())


def wait_until(browser, script, *values):
    """Wait until a script returns something, and return it."""
    wait = WebDriverWait(browser, 60, poll_frequency=0.1)
    return wait.until(lambda one: one.execute_script(DEEP + script, *values))


def wait_until_ready(browser):
    """Wait until all figures are laid out and all tables made, as for a print."""
    wait_until(browser, "return window.Bokeh && document.querySelectorAll('[data-panel]').length;")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    wait_until(
        browser,
        "const panels = document.querySelectorAll('[data-panel]').length;"
        "return deep(document, 'canvas').length >= panels"
        " && document.querySelectorAll('table.dataTable').length == 4"
        " && Bokeh.documents.every((one) => one.is_idle);",
    )


def test_report_page_is_one_small_self_contained_file(page):
    text = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page.read_text(), flags=re.S)
    assert page.stat().st_size < MOST_BYTES
    assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(?!data:|#)[^\"]*", text)
    assert [path.name for path in page.parent.iterdir()] == ["index.html"]


def unpack(page: str) -> str:
    """Return the scripts of a packed page, one after another."""
    pack = r'<script id="packed" type="application/gzip">(.*?)</script>'
    (packed,) = re.findall(pack, page, re.DOTALL)
    return "\n".join(text for _, text in json.loads(gzip.decompress(base64.b64decode(packed))))


def test_packing_moves_scripts_without_changing_them():
    scripts = ["let a = '<b>ü</b>';", "\nawait a;\n", "a < b && c"]
    made = '<header></header><p>é</p><script>{}</script><script type="module">{}</script>{}</body>'
    packed = build.pack_scripts(made.format(*scripts[:2], f"<script>{scripts[2]}</script>"))
    assert unpack(packed) == "\n".join(scripts)
    assert "let a" not in packed and packed.startswith("<header></header><p>é</p><script id=")


def test_report_page_is_deterministic(page, tmp_path):
    # In a process of its own, as a command is: Bokeh counts the models of a process.
    again = (
        "import sys; sys.path[:0] = sys.argv[2:]; import test_page; test_page.write(sys.argv[1])"
    )
    texts = []
    for name in ("one.html", "two.html"):
        words = [sys.executable, "-c", again, tmp_path / name, Path(__file__).parent, *PATHS]
        subprocess.run(words, check=True)
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]


def test_headings_are_nested_and_figures_and_tables_have_captions(page):
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page.read_text(), flags=re.S)
    levels = [int(level) for level in re.findall(r"<h([1-6])", text)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    assert '<html lang="en">' in text and "<title>" in text
    assert len(re.findall(r"<figure ", text)) == len(re.findall(r"<figcaption>", text)) == 4 + 6
    named = set(re.findall(r'id="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= named


def test_proxy_data_are_marked_in_every_figure_and_row(page):
    text = page.read_text()
    figures = re.findall(r'<figure class="panel" data-panel="(\w+)-\d+">(.*?)</figcaption>', text,
                         flags=re.S)  # fmt: skip
    assert len(figures) == 10
    for name, caption in figures:
        assert ("stand-in" in caption) == (name == "routerbench")
    made = studies()["routerbench"]
    rows = made.numbers.filter(pl.col("metric").is_in(list(build.SHOWN))).height
    scripts = unpack(text)
    listed = scripts.partition('querySelectorAll("#numbers')[2].partition("#ran")[0]
    assert listed.count(build.MARK) >= rows > 0


def test_report_page_makes_no_network_request_and_logs_no_error(browser):
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert asked and all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    visible = [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert not visible


def test_every_figure_is_drawn(browser):
    drawn = wait_until(
        browser,
        """
        const blue = [0, 114, 178];  // ACQB's
        return [...document.querySelectorAll('[data-panel]')].map((panel) => {
          let count = 0;
          for (const canvas of deep(panel, 'canvas')) {
            const {width, height} = canvas;
            const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
            for (let i = 0; i < data.length; i += 4)
              if (blue.every((part, j) => Math.abs(data[i + j] - part) < 12) && data[i + 3] > 200)
                count += 1;
          }
          return [panel.dataset.panel, count];
        });
        """,
    )
    assert len(drawn) == 10
    assert all(pixels > 50 for _, pixels in drawn), drawn


# A panel's first line of ACQB, and where on the screen one of its points lies.
POINT = """
const panel = document.querySelector(`[data-panel="${arguments[0]}"]`);
panel.scrollIntoView({block: 'center', behavior: 'instant'});
const id = panel.querySelector('[data-root-id]').dataset.rootId;
const view = Bokeh.index.get_by_id(id), plot = view.model;
const line = plot.renderers.find((one) => one.glyph.type == 'Line'
                                          && one.data_source.name == 'ACQB');
const data = line.data_source.data, k = Math.floor(data.t.length / 2);
const box = deep(panel, '.bk-Canvas, .bk-canvas')[0] || deep(panel, 'canvas')[0];
const {left, top} = box.getBoundingClientRect();
const [x, y] = [view.frame.x_scale.compute(data.t[k]), view.frame.y_scale.compute(data.m[k])];
return {x: left + x, y: top + y, mean: data.m[k], round: data.t[k],
        top: plot.y_range.end, right: plot.x_range.end - plot.x_range.start};
"""


def test_a_line_shows_its_values_under_the_pointer(browser):
    point = browser.execute_script(DEEP + POINT, "synthetic-0")
    for offset in (3, 0):
        browser.execute_cdp_cmd(
            "Input.dispatchMouseEvent",
            {"type": "mouseMoved", "x": point["x"] + offset, "y": point["y"]},
        )
    visible = wait_until(
        browser,
        "return deep(document, '.bk-tooltip-content, .bk-Tooltip').map((one) => one.innerText"
        " + (one.shadowRoot ? one.shadowRoot.textContent : '')).find((text) => text.trim());",
    )
    assert "ACQB" in visible and "95% interval" in visible
    assert f"{point['mean']:.2f}" in visible and f"{point['round']:,.0f}" in visible


def switch(browser, study, name):
    return wait_until(
        browser,
        "return deep(document.getElementById(arguments[0]), 'button')"
        ".find((one) => one.textContent.trim() == arguments[1]);",
        study, name,
    )  # fmt: skip


def test_legend_switches_hide_policies_by_keyboard(browser):
    before = browser.execute_script(DEEP + POINT, "synthetic-0")["top"]
    button = switch(browser, "synthetic", "random query and LLM")
    button.send_keys(Keys.SPACE)
    wait_until(
        browser,
        POINT.replace("return {", "return plot.y_range.end < 0.6 * arguments[1] && {"),
        "synthetic-0", before,
    )  # fmt: skip
    button.send_keys(Keys.ENTER)
    shown = POINT.replace("return {", "return plot.y_range.end > arguments[1] * 0.9 && {")
    wait_until(browser, shown, "synthetic-0", before)


def test_a_panel_is_zoomed_and_reset_from_its_toolbar_by_the_keyboard(browser):
    before = browser.execute_script(DEEP + POINT, "routerbench-0")["right"]
    find = (
        "return deep(document.querySelector('[data-panel=\"routerbench-0\"]'), '[title]')"
        ".find((one) => one.title.startsWith(arguments[0]));"
    )
    wait_until(browser, find, "Zoom In").send_keys(Keys.ENTER)
    nearer = POINT.replace(
        "return {",
        "const wide = plot.x_range.end - plot.x_range.start; return wide < arguments[1] && {",
    )
    wait_until(browser, nearer, "routerbench-0", 0.95 * before)
    wait_until(browser, find, "Reset").send_keys(Keys.ENTER)
    whole = nearer.replace("wide < arguments[1]", "wide >= arguments[1]")
    wait_until(browser, whole, "routerbench-0", 0.99 * before)


def column(browser, table, header):
    """The cells shown of a column."""
    return browser.execute_script(
        """
        const table = document.getElementById(arguments[0]);
        const heads = [...table.querySelectorAll('thead tr:first-child th')];
        const at = heads.findIndex((one) => one.innerText.trim().startsWith(arguments[1]));
        return [...table.querySelectorAll('tbody tr')].map((one) => one.cells[at].innerText);
        """,
        table, header,
    )  # fmt: skip


def control(browser, table, header, number):
    """The sorting (0) or filtering (1) button of a header."""
    button = browser.execute_script(
        """
        const table = document.getElementById(arguments[0]);
        const heads = [...table.querySelectorAll('thead tr:first-child th')];
        const head = heads.find((one) => one.innerText.trim().startsWith(arguments[1]));
        head.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
        return head.querySelectorAll('.dtcc-button')[arguments[2]];
        """,
        table, header, number,
    )  # fmt: skip
    assert button is not None, (table, header)
    return button


def test_tables_are_sorted_from_their_headers_by_the_keyboard(browser):
    wait_until(browser, "return document.querySelectorAll('#compared tbody tr').length >= 10;")
    for falls, first in ((False, 0.0), (True, 1075.0)):
        control(browser, "compared", "paper", 0).send_keys(Keys.ENTER)
        WebDriverWait(browser, 30).until(
            lambda one, falls=falls, first=first: is_sorted(one, falls, first)
        )


def is_sorted(browser, falls, first):
    """Whether the paper's numbers are sorted, the extreme one on top."""
    shown = [float(cell) for cell in column(browser, "compared", "paper")]
    return shown == sorted(shown, reverse=falls) and shown[0] == first


@pytest.mark.parametrize(
    ("table", "header", "wanted"),
    [("compared", "dataset", "RouterBench"), ("numbers", "policy", "KNN"), ("numbers", "K", "2")],
)
def test_tables_are_filtered_from_lists_in_their_headers(table, header, wanted, browser):
    whole = column(browser, table, header)
    control(browser, table, header, 1).send_keys(Keys.ENTER)
    listed = "return [...document.querySelectorAll('.dtcc-list-buttons .dtcc-button')]"
    script = f"{listed}.find((one) => one.innerText.trim() == arguments[0]);"
    button = wait_until(browser, script, wanted)
    wait = WebDriverWait(browser, 30)
    button.click()
    wait.until(lambda one: set(column(one, table, header)) == {wanted})
    button.click()
    wait.until(lambda one: column(one, table, header) == whole)
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)  # closes the list


def test_controls_are_reachable_by_keyboard(page, browser):
    open_in_new_tab(browser, page)
    wait_until_ready(browser)
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    focused = browser.switch_to.active_element
    assert focused.text == "Skip to the report"
    reached = wait_until(
        browser,
        """
        const wanted = {
          switches: '.switches [data-root-id]', toolbars: '.panel [data-root-id]',
          tables: '.scroll table.dataTable',
        };
        const operable = 'button, input, select, a[href], summary, [tabindex="0"]';
        return Object.fromEntries(Object.entries(wanted).map(([name, words]) => [
          name, [...document.querySelectorAll(words)].every((one) =>
            deep(one, operable).length > 0 || one.closest('.scroll')?.querySelector(operable)),
        ]));
        """,
    )
    assert reached == {"switches": True, "toolbars": True, "tables": True}


def test_figures_are_drawn_when_visible_and_redrawn_on_a_log_axis(page, browser):
    open_in_new_tab(browser, page)
    count = "deep(document.getElementById('routerbench'), 'canvas').length"
    wait_until(browser, "return window.Bokeh && document.getElementById('routerbench');")
    assert browser.execute_script(f"{DEEP} return [{count}, Bokeh.documents.length];") == [0, 0]
    scroll = "document.getElementById('routerbench').scrollIntoView();"
    wait_until(browser, f"{scroll} return {count} >= 6;")
    browser.execute_script("document.querySelector('[data-of=routerbench]').click();")
    scales = "Bokeh.documents.at(-1).roots().map((one) => one.y_scale?.type)"
    wait_until(browser, f"return {count} >= 6 && {scales}.includes('LogScale');")


@pytest.mark.parametrize("width", WIDTHS)
def test_report_page_fits_the_screen_width(width, browser):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    # Figures follow the width a moment later.
    fits = "return document.documentElement.scrollWidth <= window.innerWidth"
    within = (
        " && [...document.querySelectorAll('[data-panel]')].every((one) =>"
        " deep(one, 'canvas').every((canvas) => canvas.clientWidth <= one.clientWidth + 1));"
    )
    wait_until(browser, fits + within)
    columns = browser.execute_script(
        "const tops = [...document.querySelectorAll('#synthetic [data-panel]')]"
        ".map((one) => one.getBoundingClientRect().top); return new Set(tops).size;"
    )
    assert columns == (4 if width == 400 else 1)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
