"""What is left of Python source in a public record: nothing that stands for a secret by a name."""

import ast

import pytest

from hf_rlhf.storage.secrets import REDACTED, redact_secrets, redact_source

SECRET = "hunter2hunter2"
FORMS = [
    """x = f"{f(os.environ.get('API_KEY', '§'))}\"""",
    'def f(first="kept", *, api_key: str | None = "§"): pass',
    '    def method(self, api_key: str | None = "§"):\n        return 1',
    'class R:\n    api_key = "§"',
    'api_key = \\\n    "§"',
    'os.environ.get("API_KEY", "§")',
    'h = {"x-api-key": "§"}',
    'API_KEY = """\n§"""',
    "API_KEY = '§'",
    'f(api_key="§")',
    'b, (api_key, c) = 1, ("§", 2)',
    'api_key = f"§{x}"',
    'api_key = b"§"',
    'api_key = "hunter2" "hunter2"',
    'k = SecretStr("§")',
    'if api_key == "§": pass',
    '# api_key = "§"',
    "x = 1  # API_KEY=§",
    '"""Use api_key="§"."""',
    "exec('api_key = \"§\"')",
    'j = \'{"api_key": "§"}\'',
    'headers = {"Authorization": f"Bearer §{x}"}',
    'requests.get(url, auth=HTTPBasicAuth("me", "§"))',
    'SLACK_TOKEN = "§"',
    'apiKey = "§"',
    'API_KEY = (  # comment\n    "§"\n)',
    'ä = 1; api_key = "é" "§"',
    'rewards=[lambda c, api_key="§": 1],',
]


@pytest.mark.parametrize("form", FORMS)
def test_a_string_beside_the_name_of_a_secret_is_left_out(form):
    source = form.replace("§", SECRET)
    for text in (source, f"x = 'ä'\n{source}\ny = 'kept text'\n", source.replace("\n", "\r\n")):
        redacted = redact_source(text)
        assert "hunter" not in redacted
        assert REDACTED in redacted
        try:
            ast.parse(text)
        except SyntaxError:
            continue
        ast.parse(redacted)
        assert "kept text" in redacted or "kept text" not in text


@pytest.mark.parametrize(
    "source",
    [
        'eos_token = "<|endoftext|>"',
        'EOS_TOKEN = "<|endoftext|>"',
        'API_KEY = os.environ["OPENAI_API_KEY"]',
        'api_key = config["api_key"]',
        'text = "the token is long"',
        'def reward(completions, max_tokens="unlimited"): pass',
        'tokens = text.split("separator")',
        'answer_key = "gold_answer"',
        '"""Return the tokens.\n\n    Args:\n        key: of the row\n    """',
        'score = {"answer": "forty-two", "tokenizer": "package://tiny"}',
        '    def method(self):\n        return "indented"\n',
    ],
)
def test_other_source_stays_as_it_is(source):
    assert redact_source(source) == source


def test_text_that_is_not_python_is_left_out():
    assert redact_source('f(\nk = "hunter2hunter2"') == REDACTED


def test_values_with_such_names_are_left_out_of_the_record_too():
    """Source that reads a global has its value beside it."""
    values = {"OPENAI_KEY": SECRET, "SLACK_TOKEN": SECRET, "a": {"wandb_key": SECRET}}
    assert SECRET not in str(redact_secrets(values))
    kept = {"EOS_TOKEN": "<|endoftext|>", "answer_key": "gold_answer", "max_tokens": "unlimited"}
    assert redact_secrets(kept) == kept


@pytest.mark.parametrize("data", ["Ab_", "a-", "#a", "# ", "a:"])
def test_long_data_in_source_takes_no_longer_than_other_text(data):
    """Embedded data of 200 kB, which a pattern without a bound searches for hours."""
    source = f"DATA = '{data * 60_000}'  # {data * 20_000}\nAPI_KEY = 'abcdefgh'\n"
    assert redact_source(source) == source.replace("abcdefgh", "[redacted]").replace(
        "'[redacted]'", '"[redacted]"'
    )
