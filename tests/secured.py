"""A broker with TLS, logins and permissions, and its keys."""

from __future__ import annotations

import subprocess
from pathlib import Path

from eventually import LIMIT_S
from sparkonce_lab.rig.kafka import Cluster

PASSWORD = "not, so; secret="  # noqa: S105
PLAIN_USERS = ("plain", "half")
LOGIN = "org.apache.kafka.common.security"


SERVER = "subjectAltName=IP:127.0.0.1"
ELSEWHERE = "subjectAltName=DNS:elsewhere.invalid"
CLIENT = "keyUsage=digitalSignature"


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=LIMIT_S)


def make_certificate(folder: Path, name: str, extension: str, *, subject: str | None = None, days: int = 2) -> None:
    """A key and a certificate from the authority in the folder. With -1 days, the certificate has expired."""
    (folder / f"{name}.ext").write_text(extension)
    _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject or name}",
             "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
             "-days", str(days), "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip


def make_keys(folder: Path) -> Path:
    """An authority, with one certificate for the broker and one for a client whose key has a password."""

    def openssl(*arguments: str) -> None:
        _openssl(folder, *arguments)

    for authority in ("ca", "stranger"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={authority}", "-days", "2",
                "-keyout", f"{authority}.key", "-out", f"{authority}.pem")  # fmt: skip
    make_certificate(folder, "broker", SERVER)
    make_certificate(folder, "client", CLIENT)
    openssl("pkcs8", "-topk8", "-in", "client.key", "-passout", f"pass:{PASSWORD}", "-out", "client.locked.key")
    openssl("pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-in", "client.key", "-passout", f"pass:{PASSWORD}",
            "-out", "client.java.key")  # fmt: skip
    return folder


def secured_cluster(keys: Path) -> Cluster:
    """Returns a secured cluster that has not been started yet.

    Its listeners are SASL; TLS, which requires a client certificate; BOTH, which requires a password over TLS; and, if
    the keys include such certificates, EXPIRED and ELSEWHERE, which are like BOTH but present these certificates.
    """
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in PLAIN_USERS)
    overrides = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=client;User:token",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl.plain.sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required {users};",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        "listener.name.sasl.oauthbearer.sasl.jaas.config": (
            f'{LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": _in_one_file(keys, "broker"),
        "listener.name.tls.ssl.truststore.type": "PEM",
        "listener.name.tls.ssl.truststore.location": str(keys / "ca.pem"),
        "listener.name.tls.ssl.client.auth": "required",
    }
    listeners = {"SASL": "SASL_PLAINTEXT", "TLS": "SSL"}
    for listener, certificate in {"BOTH": "broker", "EXPIRED": "expired", "ELSEWHERE": "elsewhere"}.items():
        if not (keys / f"{certificate}.key").exists():
            continue
        listeners[listener] = "SASL_SSL"
        name = f"listener.name.{listener.lower()}"
        overrides |= {
            f"{name}.ssl.keystore.type": "PEM",
            f"{name}.ssl.keystore.location": _in_one_file(keys, certificate),
            f"{name}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            f"{name}.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        }
    return Cluster(listeners=listeners, overrides=overrides)


def _in_one_file(keys: Path, certificate: str) -> str:
    """Returns the key and the certificate in the form that Java's PEM key store expects."""
    both = keys / f"{certificate}.both.pem"
    both.write_text((keys / f"{certificate}.key").read_text() + (keys / f"{certificate}.pem").read_text())
    return str(both)
