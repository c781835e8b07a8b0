"""A page's scripts squeezed into one: a third of the bytes, and the browser itself unpacks them.

Libraries, lines and tables are scripts of the page. They are taken out of it, squeezed together by
gzip, and put back in their order when the page is opened, by what browsers have had since 2023.
"""

import base64
import gzip
import json
import re

SCRIPT = re.compile(r"<script([^>]*)>(.*?)</script>\s*", re.DOTALL)
KIND = re.compile(r'type="([^"]+)"')
PACK = re.compile(r'<script id="packed" type="application/gzip">(.*?)</script>', re.DOTALL)
LOADER = """<script id="packed" type="application/gzip">{pack}</script>
<script type="module">
if (!window.DecompressionStream)
  document.querySelector('header').insertAdjacentHTML('beforeend',
    '<p role="alert">Figures and tables need a browser of 2023 or later.</p>');
const letters = atob(document.getElementById('packed').textContent);
const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
for (const [kind, text] of await new Response(stream).json()) {{
  const script = document.createElement('script');
  script.type = kind;
  script.textContent = text;
  document.body.append(script);
}}
</script>
</body>"""


def pack(page: str) -> str:
    """Return a page with all its scripts in one, which runs them in their order."""
    scripts = [
        (kind[1] if (kind := KIND.search(words)) else "text/javascript", text)
        for words, text in SCRIPT.findall(page)
    ]
    # Without the time, so that the same results give the same page.
    squeezed = gzip.compress(json.dumps(scripts).encode(), compresslevel=9, mtime=0)
    loader = LOADER.format(pack=base64.b64encode(squeezed).decode())
    return SCRIPT.sub("", page).replace("</body>", loader)


def unpack(page: str) -> str:
    """Return the scripts of a packed page, one after another."""
    (packed,) = PACK.findall(page)
    return "\n".join(text for _, text in json.loads(gzip.decompress(base64.b64decode(packed))))
