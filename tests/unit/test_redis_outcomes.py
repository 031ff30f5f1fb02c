import pytest
import redis.exceptions as errors

from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.redis.names import shown_url
from sparkonce.sinks.redis.nodes import Endpoint, Nodes
from sparkonce.sinks.redis.outcomes import Refusal, code_of, read_ledger, read_refusal


@pytest.mark.parametrize(
    "code",
    sorted(
        {
            *("", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "BUSY"),
            *("NOSCRIPT", "NOREPLICAS", "MISCONF", "OOM"),
        }
    ),
)
def test_what_passes_is_asked_again(code):
    found = read_refusal(Refusal(code, f"{code} words"))
    assert (found.outcome, f"{code} words".strip() in found.reason) == (Outcome.RETRY, True)
    assert Refusal(code, "").is_retriable


@pytest.mark.parametrize("code", ["WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT", "ERR", "NEVERSEEN"])
def test_everything_else_is_unknown(code):
    assert read_refusal(Refusal(code, f"{code} words")).outcome is Outcome.UNKNOWN


AT = "@user_script: 1:"
"""The position of the failed command in a script, with which Redis 6 prefixes the error."""


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("ERR Script attempted to access a non local key in a cluster node script: 1", Outcome.RETRY),
        ("ERR max number of clients reached", Outcome.RETRY),
        ("@user_script: 37: -OOM command not allowed when used memory > 'maxmemory'.\r\n", Outcome.RETRY),
        (f"Error running script (call to f_1f): {AT} {AT} -READONLY You can't write against a read", Outcome.RETRY),
        ("@user_script: 1: The user executing the script can't run this command or subcommand", Outcome.UNKNOWN),
        ("ERR value is not an integer or out of range", Outcome.UNKNOWN),
        ("ERR hash value is not an integer", Outcome.UNKNOWN),
        ("ERR increment or decrement would overflow", Outcome.UNKNOWN),
        ("ERR The user executing the script can't run this command", Outcome.UNKNOWN),
    ],
)
def test_errors_that_are_known_by_their_words(text, outcome):
    found = read_refusal(Refusal(code_of(text), text))
    assert found.outcome is outcome
    assert "not known to get" not in found.reason


@pytest.mark.parametrize(
    ("state", "single", "cluster"),
    [
        ("D", Outcome.ALREADY_COMMITTED, Outcome.ALREADY_COMMITTED),
        ("A", Outcome.LOST, Outcome.LOST),
        ("expired", Outcome.LOST, Outcome.LOST),
        ("absent", Outcome.LOST, Outcome.UNKNOWN),
        ("O", Outcome.LOST, Outcome.UNKNOWN),
        ("no ledger", Outcome.UNKNOWN, Outcome.UNKNOWN),
        ("restored", Outcome.UNKNOWN, Outcome.UNKNOWN),
        ("forgotten", Outcome.UNKNOWN, Outcome.UNKNOWN),
        ("?", Outcome.UNKNOWN, Outcome.UNKNOWN),
    ],
)
def test_what_the_ledger_says(state, single, cluster):
    assert read_ledger(state, cluster=False).outcome is single
    assert read_ledger(state, cluster=True).outcome is cluster


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.MovedError("3999 127.0.0.1:6381"), "MOVED"),
        (errors.AskError("3999 127.0.0.1:6381"), "ASK"),
        (errors.TryAgainError("words"), "TRYAGAIN"),
        (errors.ClusterDownError("words"), "CLUSTERDOWN"),
        (errors.BusyLoadingError("words"), "LOADING"),
        (errors.ReadOnlyError("words"), "READONLY"),
        (errors.NoScriptError("words"), "NOSCRIPT"),
        (errors.OutOfMemoryError("words"), "OOM"),
        (errors.AuthenticationError("words"), "WRONGPASS"),
        (errors.NoPermissionError("words"), "NOPERM"),
        (errors.ResponseError("WRONGTYPE Operation"), "WRONGTYPE"),
        (errors.ResponseError("value is not an integer"), "ERR"),
        (errors.ConnectionError("words"), ""),
        (errors.TimeoutError("words"), ""),
        (OSError("words"), ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_client_librarys_errors_have_their_codes_again(error, code):
    nodes = Nodes(Endpoint(url="redis://localhost"))
    found = nodes._refusal(error)
    assert found.code == code
    assert code == "ERR" or found.text.startswith(code)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:s3cret@h:6379/0", "redis://h:6379/0"),
        ("redis://h:6379?password=s3cret", "redis://h:6379"),
        ("redis://:12/s3cret@h:6379", "redis://…"),
        ("redis://u:s3/cret@h:6379/0", "redis://…"),
        ("unix://", "unix://"),
    ],
)
def test_a_url_is_shown_without_what_may_be_a_password(url, shown):
    assert shown_url(url) == shown
