"""Which errors of each system's writer the driver waits for, and which end the query."""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from confluent_kafka import KafkaError
from pymysql.err import InterfaceError, InternalError, OperationalError

from sparkonce.errors import OutageError, PrepareError
from sparkonce.sinks.files.hdfs import prepare_error as hdfs_error
from sparkonce.sinks.files.s3.requests import Answer, read
from sparkonce.sinks.files.s3.store import _not_whole
from sparkonce.sinks.files.store import preparing
from sparkonce.sinks.kafka.pooled_producer import PooledProducer
from sparkonce.sinks.kafka.writer import _broken
from sparkonce.sinks.redis.outcomes import Refusal
from sparkonce.sinks.redis.writer import _refused
from sparkonce.sinks.sql.mysql.outcomes import prepare_error as mysql_error
from sparkonce.sinks.sql.postgres.outcomes import prepare_error

FATAL = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: FATAL:  '


def postgres(code: str) -> PrepareError:
    return prepare_error(psycopg.errors.lookup(code)("words"), "slot 1")


def postgres_connecting(words: str) -> PrepareError:
    return prepare_error(psycopg.OperationalError(words), "slot 1")


def mysql(error: Exception) -> PrepareError:
    return mysql_error(error, "slot 1")


def redis(code: str, text: str = "") -> PrepareError:
    return _refused(Refusal(code, text or f"{code} words"), "staging")


def local(number: int) -> PrepareError:
    with pytest.raises(PrepareError) as caught, preparing("/data"):
        raise OSError(number, "words")
    return caught.value


def hdfs(error: Exception) -> PrepareError:
    return hdfs_error(error, "/data")


def s3(status: int | None, code: str) -> PrepareError:
    return _not_whole("key", read(Answer(status=status, code=code), "UploadPart"))


def kafka_row(code: int) -> PrepareError:
    pooled = PooledProducer({}, transactional_id="")
    pooled.reports.on_delivery(KafkaError(code), Mock(topic=lambda: "t", key=lambda: b"", value=lambda: b""))
    return _broken(pooled)("refused")


def kafka(code: int, *before: int) -> Any:
    pooled = PooledProducer({}, transactional_id="")
    for one in before:
        pooled.reports.on_error(KafkaError(one))
    return pooled.explain(KafkaError(code), "could not begin")


@pytest.mark.parametrize(
    "error",
    [
        *(postgres(code) for code in ("08006", "25006", "53100", "53300", "57P01", "57P02", "57P03")),
        prepare_error(
            psycopg.errors.ProtocolViolation("query_wait_timeout"), "slot 1"
        ),  # PgBouncer has one code for all
        postgres_connecting(f"{FATAL}remaining connection slots are reserved"),
        postgres_connecting(f"{FATAL}the database system is starting up"),
        postgres_connecting("connection failed: Connection refused"),
        *(
            mysql(OperationalError(number, "words"))
            for number in (1021, 1040, 1053, 1114, 1203, 1927, 2003, 2006, 2013)
        ),
        mysql(InterfaceError(0, "")),
        mysql(OperationalError(1030, 'Got error 28 "No space left on device" from storage engine InnoDB')),
        mysql(OperationalError(1026, 'Error writing file (Errcode: 122 "Disk quota exceeded")')),
        mysql(OperationalError(1005, 'Can\'t create table (errno: 28 "No space left on device")')),
        mysql(TimeoutError("timed out")),
        *(redis(code) for code in ("", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOREPLICAS", "MISCONF")),
        redis("ERR", "ERR max number of clients reached"),
        *(local(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT)),
        hdfs(TimeoutError("no answer")),
        hdfs(OSError("connection refused")),
        hdfs(RuntimeError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: quota")),
        hdfs(RuntimeError("java.io.IOException: File /f could only be written to 0 of the 1 minReplication nodes")),
        s3(None, "EndpointConnectionError"),
        s3(503, "SlowDown"),
        s3(507, "XMinioStorageFull"),
        kafka_row(KafkaError._MSG_TIMED_OUT),
        kafka_row(KafkaError.KAFKA_STORAGE_ERROR),
        kafka(KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN),
        kafka(KafkaError.COORDINATOR_NOT_AVAILABLE),
    ],
    ids=str,
)
def test_what_is_waited_for(error):
    assert isinstance(error, OutageError)


@pytest.mark.parametrize(
    "error",
    [
        *(postgres(code) for code in ("22021", "23505", "40P01", "42501", "53200", "55P03", "57014", "57P04", "XX000")),
        prepare_error(
            psycopg.errors.ProtocolViolation("transaction blocks not allowed in statement pooling mode"), "slot 1"
        ),
        postgres_connecting(f'{FATAL}password authentication failed for user "u"'),
        postgres_connecting(f'{FATAL}database "nope" does not exist'),
        postgres_connecting(f'{FATAL}no pg_hba.conf entry for host "10.0.0.1"'),
        prepare_error(psycopg.DataError("no code"), "slot 1"),
        *(mysql(OperationalError(number, "words")) for number in (1045, 1062, 1205, 1213, 1264, 1290, 1406, 9999)),
        mysql(OperationalError(1030, 'Got error 122 "Internal (unspecified) error in handler" from storage engine')),
        mysql(InternalError("Packet sequence number wrong")),
        mysql(FileNotFoundError(2, "ssl_ca='/nowhere': No such file or directory")),
        *(redis(code) for code in ("OOM", "NOPERM", "WRONGPASS", "WRONGTYPE", "NEWERR")),
        redis("", "FileNotFoundError: ssl_ca_certs='/nowhere': No such file or directory"),
        *(local(number) for number in (errno.EACCES, errno.EROFS, errno.ENAMETOOLONG, errno.EIO)),
        hdfs(FileNotFoundError("swept")),
        hdfs(PermissionError("no")),
        hdfs(RuntimeError("org.apache.hadoop.security.AccessControlException: no")),
        hdfs(RuntimeError("something new")),
        *(s3(403, code) for code in ("AccessDenied", "InvalidAccessKeyId", "NewError")),
        kafka_row(KafkaError.MSG_SIZE_TOO_LARGE),
        kafka_row(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        kafka(KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION),
        kafka(KafkaError.INVALID_PRODUCER_EPOCH),
    ],
    ids=str,
)
def test_what_is_not(error):
    assert not isinstance(error, OutageError)
    assert type(error) is PrepareError
