"""A page's scripts squeezed into one: a third of the bytes, and the browser itself unpacks them.

Libraries, lines and tables are scripts of the page. They are taken out of it, squeezed together by
gzip, and put back in their order when the page is opened, by what browsers have had since 2023.
"""

import base64
import gzip
import json
import re
from pathlib import Path

SCRIPT = re.compile(r"<script([^>]*)>(.*?)</script>\s*", re.DOTALL)
KIND = re.compile(r'type="([^"]+)"')
LOADER = Path(__file__).with_name("loader.html")


def pack(page: str) -> str:
    """Return a page with all its scripts in one, which runs them in their order."""
    scripts = [
        (kind[1] if (kind := KIND.search(words)) else "text/javascript", text)
        for words, text in SCRIPT.findall(page)
    ]
    # Without the time, so that the same results give the same page.
    squeezed = gzip.compress(json.dumps(scripts).encode(), compresslevel=9, mtime=0)
    loader = LOADER.read_text().rstrip().format(pack=base64.b64encode(squeezed).decode())
    return SCRIPT.sub("", page).replace("</body>", loader)
