"""Checks a server, or each node of a cluster, before anything is claimed or written."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping

from sparkonce.errors import ANEW, PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import Facts
from sparkonce.sinks._shared.preflight import refusal
from sparkonce.sinks.redis import scripts
from sparkonce.sinks.redis.names import IDENTITY, Key, hash_slot, shown_url
from sparkonce.sinks.redis.nodes import Nodes, RedisReply, Request, run_script
from sparkonce.sinks.redis.outcomes import Refusal, code_of, read_refusal

log = logging.getLogger(__name__)

OLDEST = (6, 0)
_IDENTITY_SLOT = hash_slot(IDENTITY.encode())


def read_info(answer: bytes) -> Mapping[str, str]:
    """Parses a server's response to INFO."""
    lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def why_not_stage(node: str, info: Mapping[str, str]) -> str:
    """Returns why a server may lose staged rows; empty if it keeps them."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ""
    return f"{node} has maxmemory-policy={policy}: it may evict staged rows, and the ledger that notes them as applied"


def why_not_decide(nodes: Nodes) -> str:
    """Returns why a server may lose staged rows; empty if all keep them. Skips unreachable servers."""
    told = nodes.everywhere("INFO", "memory")
    infos = {node: read_info(answer) for node, answer in told.items() if isinstance(answer, bytes)}
    return next(filter(None, (why_not_stage(node, info) for node, info in infos.items())), "")


class Preflight:
    """Runs the checks of a start. At least ``wait_replicas`` replicas must take part."""

    def __init__(self, nodes: Nodes, guarantee: Guarantee, prefix: str, wait_replicas: int) -> None:
        self._nodes = nodes
        self._exactly_once = guarantee is Guarantee.EXACTLY_ONCE
        self._guarantee = guarantee
        self._prefix = prefix
        self._wait_replicas = wait_replicas

    def facts(self, recorded: Facts | None) -> Facts:
        """Checks the server, its settings and this user's permissions.

        Returns ``prefix``, ``server`` (the random id of this server or cluster) and ``mode``.

        Raises:
            PreflightError: If a setting does not allow the guarantee. The message names it and its value.
        """
        infos = self._infos()
        for node, info in infos.items():
            self._check_kind(node, info)
            self._check_role(node, info)
            if self._exactly_once:
                self._check_eviction(node, info)
                self._check_durability(node, info)
        self._check_commands()
        mode = "cluster" if self._nodes.endpoint.cluster else "single"
        before = recorded or {}
        if (was := before.get("mode", mode)) != mode:
            raise refusal(
                "cluster",
                self._nodes.endpoint.cluster,
                f"this query wrote to a {was} server until now.",
                f"Name the old server, or {ANEW}.",
            )
        return {"prefix": self._prefix, "server": self._identity(before.get("server")), "mode": mode}

    # --- the server -------------------------------------------------------------------------------------------------

    def _infos(self) -> dict[str, Mapping[str, str]]:
        infos: dict[str, Mapping[str, str]] = {}
        for node, answer in self._nodes.everywhere("INFO").items():
            if isinstance(answer, Refusal):
                raise refusal(
                    "url",
                    repr(shown_url(self._nodes.endpoint.url)),
                    f"{node} does not answer INFO: {read_refusal(answer).reason}",
                    "Check that the server runs, and that user and password are right; the user needs +info.",
                )
            infos[node] = read_info(answer)
        return infos

    def _check_kind(self, node: str, info: Mapping[str, str]) -> None:
        version = info.get("redis_version", "0")
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            raise PreflightError(
                f"{node} runs Redis {version}.", next_step=f"Use Redis {OLDEST[0]}.{OLDEST[1]} or newer."
            )
        is_cluster = info.get("cluster_enabled", "0") == "1"
        if is_cluster != self._nodes.endpoint.cluster:
            raise refusal(
                "cluster",
                self._nodes.endpoint.cluster,
                f"{node} has cluster_enabled={int(is_cluster)}.",
                f"Give RedisSink cluster={is_cluster}, or the address of another server.",
            )

    def _check_role(self, node: str, info: Mapping[str, str]) -> None:
        if info.get("role", "master") != "master":
            raise PreflightError(
                f"{node} is a replica of {info.get('master_host')}:{info.get('master_port')}.",
                next_step="Give the master's address, or the Sentinels that know it (sentinels, service).",
                setting="url",
            )
        replicas = int(info.get("connected_slaves", "0"))
        if replicas < self._wait_replicas:
            raise refusal(
                "wait_replicas",
                self._wait_replicas,
                f"{node} has connected_slaves={replicas}.",
                "Start the replicas, or lower wait_replicas.",
            )

    def _check_eviction(self, node: str, info: Mapping[str, str]) -> None:
        if objection := why_not_stage(node, info):
            raise PreflightError(
                f"{objection}.",
                next_step="Set maxmemory-policy to noeviction, write to another server, or choose "
                f"guarantee=Guarantee.{Guarantee.AT_LEAST_ONCE.name}.",
                setting="maxmemory-policy",
            )

    def _check_durability(self, node: str, info: Mapping[str, str]) -> None:
        answer = self._nodes.everywhere("CONFIG", "GET", "appendfsync").get(node)
        fsync = "unknown: CONFIG is not allowed" if isinstance(answer, Refusal) or not answer else answer[1].decode()
        appends = info.get("aof_enabled", "0") == "1"
        if not appends or fsync != "always":
            log.warning(
                "%s has appendonly=%s (appendfsync=%s): a crash may lose staged rows, and rows that readers have seen. "
                "Next: Set appendonly yes and appendfsync always for the full guarantee.",
                *(node, "yes" if appends else "no", fsync),
            )

    # --- this user --------------------------------------------------------------------------------------------------

    def _check_commands(self) -> None:
        if self._nodes.endpoint.cluster:
            for words in (("ASKING",), ("CLUSTER", "SLOTS")):
                for node, answer in self._nodes.everywhere(*words).items():
                    self._refuse_if(answer, f"{node} does not accept {' '.join(words)}")
        for script in scripts.ALL:
            for node, loaded in self._nodes.everywhere("SCRIPT", "LOAD", script.text).items():
                self._refuse_if(loaded, f"{node} does not load scripts")
        name = f"{IDENTITY}:probe:{secrets.token_hex(6)}"
        key = Key(name, hash_slot(name.encode()))
        tried = self._nodes.ask(run_script(scripts.PROBE, [key], int(self._exactly_once)))
        self._refuse_if(tried, "Scripts do not run")
        if isinstance(tried, list):
            command, error = (text.decode(errors="backslashreplace") for text in tried)
            self._refuse_if(Refusal(code_of(error), error), f"{command} does not work")
        if self._exactly_once:
            for command in (("HGET", name, "x"), ("HSCAN", name, 0)):
                self._refuse_if(self._nodes.ask(Request(key.hash_slot, command)), f"{command[0]} does not work")
        if self._wait_replicas:
            self._refuse_if(self._nodes.ask(Request(0, ("WAIT", 0, 1))), "WAIT does not work")

    def _refuse_if(self, answer: RedisReply, what: str) -> None:
        if isinstance(answer, Refusal):
            raise PreflightError(
                f"{what}: {read_refusal(answer).reason}",
                next_step="Grant this user ~sparkonce:*, the written keys, and the commands listed in docs/redis.md.",
            )

    def _identity(self, recorded: str | None) -> str:
        """Returns the random id of the server's data. The first start creates it, and stores it with the data."""
        if recorded is None:
            made = secrets.token_hex(16)
            self._refuse_if(
                self._nodes.ask(_identity("SET", IDENTITY, made, "NX")), f"The key {IDENTITY} is not written"
            )
        found = self._nodes.ask(_identity("GET", IDENTITY))
        self._refuse_if(found, f"The key {IDENTITY} is not read")
        shown = found.decode() if isinstance(found, bytes) else None
        if recorded not in (None, shown):
            raise refusal(
                "url",
                repr(shown_url(self._nodes.endpoint.url)),
                f"it leads to a server whose {IDENTITY} is {shown!r}, and this query wrote to {recorded!r} until now: "
                "it is another server, or has lost its data.",
                f"Name the old server, or restore its data. To continue without what it has lost: SET {IDENTITY} "
                f"{recorded}.",
            )
        return str(shown)


def _identity(*command: str) -> Request:
    return Request(_IDENTITY_SLOT, command)
