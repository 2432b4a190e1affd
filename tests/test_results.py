"""The scripts of docs/results that are no part of the program."""

import runpy

from helpers import ROOT

MODULE = """<document xmlns="http://cnx.rice.edu/cnxml"><title>Waves</title><metadata><title>Waves</title></metadata>
<content><para>Sound travels in <term>air</term> (<link target-id="a"/>), at \
<m:math xmlns:m="m"><m:mi>v</m:mi></m:math>.
Light is
faster:<equation>c</equation>see <link/>.</para><figure><caption>A wave</caption></figure>
<section class="references"><title>References</title><para>Huygens</para></section>
<exercise><para>How fast?</para></exercise><list><item>one</item><item>two</item></list></content>
<glossary><definition>air</definition></glossary></document>"""


def test_a_textbook_becomes_paragraphs():
    convert = runpy.run_path(str(ROOT / "docs/results/openstax.py"))["convert"]
    sound = "Sound travels in air , at. Light is faster:"  # the space is in the text of the studies, too
    assert convert(MODULE) == ["Waves", sound, "see.", "one", "two"]
