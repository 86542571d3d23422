"""Secrets masked in every form, over chunks and lines, without spoiling one another or the text around them."""

from __future__ import annotations

import base64
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kiln.base import masking, secret_forms
from kiln.base.masked_stream import LONGEST_LINE, MaskedLineStream
from kiln.base.masking import Mask, is_maskable
from tests import planted, written

EVERY = [
    pytest.param(variable, form, id=f"{variable}-{form}")
    for variable, secret in planted.SECRETS.items()
    for form in planted.written(secret)
]
MASK = Mask(planted.SECRETS.values())


@pytest.fixture(scope="module")
def mask() -> Mask:
    return Mask((*planted.SECRETS.values(), *planted.ONE_LETTER.values()))


def streamed(mask: Mask, *chunks: str) -> str:
    stream = MaskedLineStream(mask)
    told = [line for chunk in chunks for line in stream.feed(chunk)]
    return "\n".join((*told, *stream.finish()))


def test_there_are_twenty_forms_and_the_search_finds_each() -> None:
    assert len(written.FORMS) >= 20
    for secret, form in itertools.product(planted.SECRETS.values(), written.FORMS):
        assert planted.found(written.FORMS[form](secret).encode()), (secret, form)
    assert not planted.found(b"tk- and nothing of them")


def test_the_documentation_promises_the_tested_forms_and_no_others() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/secrets.md").read_text()
    rows = re.findall(r"^\|.*\|.*\|((?: `[\w-]+`)+) \|$", page, re.MULTILINE)
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(rows))) == sorted(written.FORMS)


@pytest.mark.parametrize(("variable", "form"), EVERY)
def test_a_secret_is_masked_in_every_form_and_the_text_around_it_stays(mask: Mask, variable: str, form: str) -> None:
    text = f"before {planted.written(planted.SECRETS[variable])[form]} after"
    assert planted.found(text.encode())
    told = streamed(mask, f"one\n{text}\ntwo\n")
    assert not planted.found(told.encode())
    assert told.startswith("one\nbefore ")
    assert told.endswith(" after\ntwo")
    assert "***" in told


@given(data=st.data())
def test_the_borders_of_chunks_make_no_difference(data: st.DataObject) -> None:
    variable = data.draw(st.sampled_from(sorted(planted.SECRETS)))
    form = data.draw(st.sampled_from(sorted(planted.written(planted.SECRETS[variable]))))
    text = f"x\nbefore {planted.written(planted.SECRETS[variable])[form]} after\nr1x\n\ny"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    chunks = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
    told = streamed(MASK, *chunks)
    assert not planted.found(told.encode())
    assert told == streamed(MASK, text)


@given(st.text(st.characters(codec="utf-8"), min_size=4, max_size=40), st.sampled_from(sorted(written.FORMS)))
@example("0000000_", "html-hex")
@example("000000\r0", "ansi-c")
@example("000000\r0", "base64")
@example("0000000000\t0", "unquoted")
@example(" 0000  \n0000\t0 ", "unquoted")
@example("0000\t\t{00000", "backslashed")
@example("00;\x1b\t\t\x1b\n\x08", "backslashed")
@example("a \\nb cdefgh", "backslashed")
def test_any_secret_is_masked_in_every_form(secret: str, form: str) -> None:
    core = secret.strip("\r\n")
    if not is_maskable(core) or len(core.strip()) < 8:
        return
    told = streamed(Mask([secret]), f"<< {written.FORMS[form](core)} >>\n")
    lines = [line for line in written.FORMS[form](core).splitlines() if len(line.strip()) >= 12]
    assert all(line.strip("'\"$ ") not in told for line in lines)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=200))
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert masking.masked(text) == text or any(sign in text for sign in "@=&?/:")
    assert Mask(["a-secret-of-nobody"]).mask_secrets_only(text) == text


def test_lines_go_on_at_once_unless_they_may_begin_a_secret() -> None:
    stream = MaskedLineStream(Mask(["first line\nsecond\nthird line"]))
    assert stream.feed("nothing\nof it\n") == ["nothing", "of it"]
    assert stream.feed("here: first line\n") == []
    assert stream.feed("second\n+ traced\n") == []
    assert stream.feed("third line.\n") == ["here: ***", "***", "+ traced", "***."]
    assert stream.feed("first line\n") == []
    told = stream.feed("else\n" * 17)
    assert told == ["***", *["else"] * 17]
    assert MaskedLineStream(Mask(["{\n'long enough': 1\n}"])).feed("{\n") == ["{"], (
        "a line without a secret delays no output"
    )
    assert stream.feed("end") == []
    assert stream.finish() == ["end"]


def test_a_secret_that_is_cut_off_is_searched_in_time_that_grows_with_its_lines() -> None:
    lines = [f'  "name{number}": "value-{number}",' for number in range(40)]
    secret = "\n".join(["{", *lines, "}"])
    text = "\n".join(f"  {line}" for line in secret.splitlines())[:-9]
    assert "value-38" not in Mask([secret]).mask_text(text)


def test_the_buffer_is_bounded() -> None:
    stream = MaskedLineStream(Mask(["r1x\nr2'y\nr3z\nr4w"]))
    stream.feed("r1x\n")
    told = stream.feed("\n" * 100)
    assert len(told) > 90
    letters = "ab" * LONGEST_LINE
    told = stream.feed(letters)
    assert sum(map(len, told)) > LONGEST_LINE
    assert "".join((*told, *stream.finish())).endswith(letters)


@pytest.mark.parametrize("offset", [0, 1, 5000, LONGEST_LINE - 5, LONGEST_LINE - 4100])
def test_an_endless_line_is_cut_only_outside_secrets(mask: Mask, offset: int) -> None:
    secret = planted.SECRETS["PLANTED_TOKEN"]
    text = "." * offset + secret + "," * LONGEST_LINE + secret + ";" * LONGEST_LINE
    told = streamed(mask, *(text[at : at + 777] for at in range(0, len(text), 777))).replace("\n", "")
    assert told == "." * offset + "***" + "," * LONGEST_LINE + "***" + ";" * LONGEST_LINE


def test_a_short_secret_spoils_no_longer_one_and_one_letter_is_not_masked() -> None:
    mask = Mask(["s", "s3cr", "s3cret-and-more", "cret-and-mo"])
    assert mask.mask_text("it is s3cret-and-more, s3cr, as3crb") == "it is ***, ***, as3crb"
    assert not is_maskable("s")
    assert mask.secrets == ("s3cr", "s3cret-and-more", "cret-and-mo")


def test_overlapping_secrets_are_masked_as_one() -> None:
    assert Mask(["abcdefghij", "fghijklmno"]).mask_text("<abcdefghijklmno>") == "<***>"


def test_wrapped_base64_is_masked_whatever_its_width(mask: Mask) -> None:
    text = base64.b64encode(b"user:" + planted.SECRETS["PLANTED_KEY"].encode()).decode()
    for width in (24, 60, 64, 76, 100):
        lines = [text[at : at + width] for at in range(0, len(text), width)]
        told = streamed(mask, *(f"{line}\n" for line in lines)).splitlines()
        assert all("***" in line for line in told), width
        assert max(len(line) for line in told) < 16


@pytest.mark.parametrize(
    "hostile", ["\\" * 60_000, "'" * 60_000, " " * 60_000, "p4ss'" + "\\" * 60_000, "%25" * 20_000]
)
def test_repeated_beginnings_of_a_secret_take_bounded_time(mask: Mask, hostile: str) -> None:
    assert streamed(mask, f"{hostile}\n").count(hostile[-9:]) > 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fetch https://user:pass@host/x", "fetch https://***@host/x"),
        ("git+https://token@host/x.git", "git+https://***@host/x.git"),
        ("grpcs://u:p@ss@host:9092", "grpcs://***@host:9092"),
        ("https://host/t/tk-123/channel/linux-64", "https://host/t/***/channel/linux-64"),
        ("https://host/conda/t/tk-123/channel", "https://host/conda/t/***/channel"),
        ("file:///home/t/me/channel", "file:///home/t/me/channel"),
        ("see https://x.example and file:///t/me/x", "see https://x.example and file:///t/me/x"),
        ("GET /t/us-1b2c3d4e-1111-2222-3333-444455556666/x", "GET /t/***/x"),
        ("https://s3/x?X-Amz-Credential=AK&X-Amz-Signature=ab12&part=1", "https://s3/x?X-Amz-Credential=***&X-Amz-Signature=***&part=1"),
        ("https://host/x?a=1&amp;token=abc#top", "https://host/x?a=1&amp;token=***#top"),
        ("https://acc.blob/x?sv=2020&sig=a%2Bb", "https://acc.blob/x?sv=2020&sig=***"),
        ("> Authorization: Basic dXNlcjpwYXNz", "> Authorization: Basic ***"),
        ('{"authorization": "Bearer abc"}', '{"authorization": "Bearer ***"}'),
        ("see /home/t/me/x and a@b.org, https://host/a/t", "see /home/t/me/x and a@b.org, https://host/a/t"),
        ("https://pypi.example/packages/source/t/tomlkit/a.tar.gz", "https://pypi.example/packages/source/t/tomlkit/a.tar.gz"),
        ("https://host/x?page=2&token", "https://host/x?page=2&token"),
    ],
)  # fmt: skip
def test_the_credentials_of_urls_are_masked(text: str, told: str) -> None:
    assert secret_forms.with_masked_credentials(text) == told
    assert masking.masked(text) == told


def test_the_credentials_of_urls_are_found() -> None:
    assert secret_forms.secrets_in_urls("https://u:p%40ss@host/t/tok-1/c?token=q") == ("p%40ss", "p@ss", "tok-1", "q")
    assert secret_forms.secrets_in_urls("https://host/c") == ()


def test_variables_are_secret_by_their_names() -> None:
    environment = {
        "ANACONDA_API_TOKEN": "a-token",
        "MY_PASSWORD": "pw-1",
        "AWS_SECRET_ACCESS_KEY": "sk",
        "AWS_SHARED_CREDENTIALS_FILE": "/root/.aws",
        "PWD": "/here",
        "HTTPS_PROXY": "http://me:of-the-proxy@proxy:3128",
        "CONDA_CHANNEL_ALIAS": "https://host/t/of-the-alias/",
        "PATH": "/bin",
    }
    assert masking.secrets_of_environment(environment) == ("a-token", "pw-1", "sk", "of-the-proxy", "of-the-alias")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "token",
            "x-signature",
            "password",
            "db_passwd",
            "client_secret",
            "sig",
            "PWD",
            "auth",
            "Key",
            "api-key",
            "apikey",
        ),
        *("AWSAccessKeyId", "X-Amz-Credential", "x-goog-credential", "S\u0130G", "\u017fecret"),
    ],
)
def test_each_name_of_a_credential_in_a_query_is_known(name: str) -> None:
    assert secret_forms.secrets_in_urls(f"https://host/?page=1&{name}=abcdefgh") == ("abcdefgh",)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *(
            (f"MY_{name}", True)
            for name in ("TOKEN", "APIKEY", "API_key", "SECRET", "PASSWORD", "passwd", "PASSPHRASE")
        ),
        *((f"MY_{name}", True) for name in ("ACCESSKEY", "PRIVATE_KEY", "CREDENTIALS", "PASS", "PWD", "API\u212aEY")),
        *((name, False) for name in ("PWD", "OLDPWD", "PATH", "MY_TOKEN_FILE", "KEYBOARD", "COMPASS")),
    ],
)
def test_each_name_of_a_secret_variable_is_known(name: str, secret: bool) -> None:
    assert masking.secrets_of_environment({name: "abcdefgh"}) == (("abcdefgh",) if secret else ())
