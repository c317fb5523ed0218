"""What is left of Python source in a public record: nothing that stands for a secret by a name."""

import ast

import pytest

from hf_rlhf.storage.secrets import REDACTED, redact_secrets, redact_source

SECRET = "hunter2hunter2"
FORMS = [
    """x = f"{f(os.environ.get('API_KEY', '§'))}\"""",
    'def f(first, api_key: str | None = "§"): pass',
    'def f(first="kept text", *, api_key: str | None = "§"): pass',
    '    def method(self, api_key: str | None = "§"):\n        return 1',
    'class R:\n    api_key = "§"',
    'try:\n    token = "§"\nexcept Exception: pass',
    'if x:\n    API_KEY = "§"',
    'if x:\n    pass\nelse:\n    API_KEY = "§"',
    'api_key: str | None = "§"',
    'api_key: Final[str] = "§"',
    'api_key = ("§")',
    'api_key = \\\n    "§"',
    'API_KEY = ["§"]',
    'os.environ.get("API_KEY", "§")',
    'os.environ.setdefault("API_KEY", "§")',
    '(token := "§")',
    'h = {"api-key": "§"}',
    'h = {"x-api-key": "§"}',
    'API_KEY = """\n§"""',
    "API_KEY = '§'",
    'f(api_key="§")',
    'h = {"token": "§"}',
    'os.environ["API_KEY"] = "§"',
    'self.api_key = "§"',
    'def f(api_key="§"): pass',
    'a = api_key = "§"',
    'api_key, b = "§", 1',
    'b, (api_key, c) = 1, ("§", 2)',
    'd = dict(api_key="§")',
    'd = dict([("api_key", "§")])',
    'api_key = f"§{x}"',
    'api_key = b"§"',
    'api_key = "hunter2" "hunter2"',
    'api_key = "hunter2" + "hunter2hunter2"',
    '@dataclass\nclass A:\n    api_key: str = field(default="§")',
    '@dataclass\nclass A:\n    api_key: str = field(default_factory=lambda: "§")',
    'key: ApiKey = "§"',
    'key: SecretStr = x("§")',
    'def f(key: "ApiKey" = "§"): pass',
    'k = SecretStr("§")',
    'api_key = os.getenv("MY") or "§"',
    'x = os.getenv("API_KEY") or "§"',
    'if api_key == "§": pass',
    'if key == os.environ["API_KEY"] == "§": pass',
    '# api_key = "§"',
    "# api_key: §",
    "x = 1  # API_KEY=§",
    '"""Use api_key="§"."""',
    "exec('api_key = \"§\"')",
    'j = \'{"api_key": "§"}\'',
    'setattr(client, "api_key", "§")',
    'def api_key():\n    return "§"',
    'class C:\n    @property\n    def auth_token(self):\n        return "§"',
    'for api_key in ["§", "b"]: pass',
    '[f(k) for api_key in ("§",)]',
    'lambda api_key="§": 0',
    'def f(*, token="§"): pass',
    'def f(a, /, b, c=1, *, d, token="§"): pass',
    'headers = {"Authorization": "Bearer §"}',
    'headers = {"Authorization": f"Bearer §{x}"}',
    'requests.get(url, auth=("me", "§"))',
    'requests.get(url, auth=HTTPBasicAuth("me", "§"))',
    'client.headers.update({"x-api-key": "§"})',
    'client.headers.add("x-api-key", "§")',
    'WANDB_KEY = "§"',
    'openai_key = "§"',
    'SLACK_TOKEN = "§"',
    'api_key = "§" if x else "§"',
    'api_key += "§"',
    'with login(api_key="§") as c: pass',
    'api_key = base64.b64decode("§")',
    'api_key = {"prod": "§"}["prod"]',
    'api_key = r"§"',
    "api_key = u'§'",
    "x = f\"{f(api_key='§')}\"",
    'API_KEY = (  # comment\n    "§"\n)',
    'config = {"judge": {"api_key": ["§"]}}',
    "password = 123456789012",
    'match x:\n    case 1:\n        token = "§"',
    '    def method(self, api_key="§"):\n        return 1',
    'token="§"; y=2',
    'api_key="é" "§"',
    'ä = 1; api_key = "§"',
    'd = {API_KEY: "§"}',
    'apiKey = "§"',
    'openai.api_key = "§"',
    'print("password", "§")',
    'async def f(token: str = "§"): ...',
    'rewards=[lambda c, api_key="§": 1],',
    'not python at all: api_key "§"',
]


@pytest.mark.parametrize("form", FORMS)
def test_a_string_beside_the_name_of_a_secret_is_left_out(form):
    source = form.replace("§", SECRET)
    for text in (source, f"x = 'ä'\n{source}\ny = 'kept text'\n", source.replace("\n", "\r\n")):
        redacted = redact_source(text)
        assert "hunter" not in redacted
        assert "123456789012" not in redacted
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
        'client = OpenAI(base_url="http://local/v1", api_key=read())',
        'if token.startswith("prefix-"): pass',
        'tokens = text.split("separator")',
        'answer_key = "gold_answer"',
        '"""Return the tokens.\n\n    Args:\n        key: of the row\n    """',
        'score = {"answer": "forty-two", "tokenizer": "package://tiny"}',
        '    def method(self):\n        return "indented"\n',
    ],
)
def test_other_source_stays_as_it_is(source):
    assert redact_source(source) == source


@pytest.mark.parametrize(
    "source", ["api_key = 'hunter2hunter2", "x = f(\n  'hunter2hunter2',", "x = '''hunter2hunter2'"]
)
def test_source_that_does_not_parse_has_no_string(source):
    assert "hunter" not in redact_source(source)


def test_source_nested_too_deep_to_be_walked_has_no_string():
    deep = "-" * 5000 + "1"
    assert redact_source(f'x = {deep}\nk = "hunter2hunter2"') == f'x = {deep}\nk = "{REDACTED}"'


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
