"""Errors that are raised while a sink, a source or a query is created, before it contacts any server or Spark."""

import sys

import sparkonce
import sparkonce.avro
import sparkonce.files
import sparkonce.write_ahead
import sparkonce_pravega
import sparkonce_rabbitmq
from mistakes import Mistake, check, said


def test_what_each_says(monkeypatch):
    made_by_mistake = [
        Mistake("KafkaSink('broker:9092', topic='t')", "settings='broker:9092' is not a mapping"),
        Mistake("KafkaSink({}, topic='t')", "bootstrap.servers is missing; there is no setting"),
        Mistake("KafkaSink({'bootstrap.server': 'broker:9092'}, topic='t')", "there is 'bootstrap.server'"),
        Mistake("KafkaSink({'bootstrap.servers': ['broker:9092']}, topic='t')", "is not a string that names a broker"),
        Mistake("KafkaSink({'kafka.bootstrap.servers': 'broker:9092'}, topic='t')", "Leave the prefix out"),
        Mistake("KafkaSink({**settings, 'acks': '1'}, topic='t')", "acks='1' cannot be used"),
        Mistake("KafkaSink({**settings, 'transactional.id': 'mine'}, topic='t')", "prefix"),
        Mistake("KafkaSink({**settings, 'enable.idempotence': False}, topic='t')", "enable.idempotence=False"),
        Mistake("KafkaSink({**settings, 'transaction.timeout.ms': '15 min'}, topic='t')", "is not a whole number"),
        Mistake("KafkaSink(settings, topic=['t'])", "topic=['t'] is not a text"),
        Mistake("KafkaSink(settings, topic='')", "topic='' is empty"),
        Mistake("KafkaSink(settings, topic='t', guarantee='exactly_once')", "Guarantee.EXACTLY_ONCE ('exactly-once')"),
        Mistake("KafkaSink(settings, topic='t', guarantee='EXACTLY_ONCE')", "Guarantee.EXACTLY_ONCE ('exactly-once')"),
        Mistake("KafkaSink(settings, topic='t', name='')", "name='' is empty"),
        Mistake("KafkaSink(settings, topic='t', prefix=7)", "prefix=7 is not a text"),
        Mistake(
            "KafkaSink(settings, topic='t', transactional_id_prefix='p')",
            "unexpected keyword argument 'transactional_id_prefix'",
            TypeError,
        ),
        Mistake("KafkaSink(topic='t')", "missing 1 required positional argument: 'settings'", TypeError),
        Mistake("FilesSink('')", "path='' names no location for files"),
        Mistake("FilesSink(None)", "path=None is not a text"),
        Mistake("FilesSink('gs://bucket/orders')", "names no location for files"),
        Mistake("FilesSink('/out', format='orc')", "format='orc' is not known"),
        Mistake("FilesSink('/out', compression='brotly')", "compression='brotly' is not known"),
        Mistake("FilesSink('/out', partition_by={'day': 'string'})", "partition_by={'day': 'string'} is not a list"),
        Mistake("FilesSink('/out', max_file_bytes='1 GB')", "max_file_bytes='1 GB' is not a whole number of 1 or more"),
        Mistake("FilesSink('/out', options='header')", "options='header' is not a mapping"),
        Mistake("FilesSink('/out', format='csv', options={'sep': ';'})", "options['sep'] is given"),
        Mistake("FilesSink('/out', manifest='no')", "manifest='no' is neither True nor False"),
        Mistake("PostgresSink(5432, table='t')", "conninfo=<int> is not a mapping"),
        Mistake("PostgresSink('host=db datbase=shop', table='t')", "conninfo is not a connection string"),
        Mistake("PostgresSink('jdbc:postgresql://db/shop', table='t')", "Leave 'jdbc:' out"),
        Mistake("PostgresSink({'host': 'db', 'database': 'shop'}, table='t')", "Call the database dbname"),
        Mistake("PostgresSink('dbname=shop', table='t', mode='update')", "mode='update' is not known"),
        Mistake("PostgresSink('dbname=shop', table='t', mode='upsert')", "mode='upsert' with key_columns=[]"),
        Mistake(
            "PostgresSink('dbname=shop', table='t', mode='upsert', key_columns=1)",
            "key_columns=1 is not a list of texts",
        ),
        Mistake("PostgresSink('dbname=shop', table='t', lock_timeout_s='10s')", "lock_timeout_s='10s' is not a number"),
        Mistake("MySQLSink('host=db database=shop', table='t')", "settings=<str> is not a mapping"),
        Mistake("MySQLSink({'host': 'db'}, table='t')", "database is missing"),
        Mistake("MySQLSink({'hots': 'db', 'database': 'shop'}, table='t')", "'hots' is not a setting of this sink"),
        Mistake("RedisSink('cache:6379')", "url is not a Redis URL"),
        Mistake("RedisSink(structure='json')", "structure='json' is not known"),
        Mistake("RedisSink(timeout_s=float('nan'))", "timeout_s=nan is not a number from 0.1"),
        Mistake("RabbitMQStreamSink('rabbit-1', stream='s')", "server='rabbit-1' is not a RabbitMQ"),
        Mistake("RabbitMQStreamSink(RabbitMQ(), stream='')", "stream='' is empty"),
        Mistake("RabbitMQStreamSink(RabbitMQ(), stream='s', body='json')", "body='json' is not known"),
        Mistake("RabbitMQ(stream_port='5552')", "stream_port='5552' is not a whole number"),
        Mistake("RabbitMQ(password=None)", "password is a NoneType"),
        Mistake("RabbitMQ(ca_file='/ca.pem')", "has no effect without tls=True"),
        Mistake("RabbitMQ(tls=True, key_file='/client.key')", "belong together"),
        Mistake("RabbitMQQueueSink('rabbit-1', queue='q')", "server='rabbit-1' is not a RabbitMQ"),
        Mistake("RabbitMQQueueSink(RabbitMQ())", "queue=None and exchange=None: exactly one is needed"),
        Mistake("RabbitMQQueueSink(RabbitMQ(), queue='q', routing_key='k')", "has no effect with queue='q'"),
        Mistake("PravegaSink('pravega:9090', scope='s', stream='t')", "controller='pravega:9090' does not begin with"),
        Mistake("PravegaSink('tcp://pravega:9090', scope='', stream='t')", "scope='' is empty"),
        Mistake("PravegaSink('tcp://pravega:9090', scope='s', stream=None)", "stream=None is not a text"),
        Mistake("Pravega('tls://pravega:9090', user='job')", "user='job' is given without the other"),
        Mistake("Pravega('tls://pravega:9090', user='job', password=7)", "password is a int"),
        Mistake(
            "Pravega('tcp://pravega:9090', trust_store='/ca.pem')", "has no effect with controller='tcp://pravega:9090'"
        ),
        Mistake("WriteAheadSink('print', applies=Applies.IDEMPOTENT)", "apply='print' is not a function"),
        Mistake("WriteAheadSink(print, applies='once')", "applies='once' is not known"),
        Mistake(
            "WriteAheadSink(print, applies=Applies.IDEMPOTENT, parallel=True)", "parallel=True is not a whole number"
        ),
        Mistake(
            "WriteAheadSink(print, applies=Applies.IDEMPOTENT, folder='s3://bucket/rows')", "only if none has its name"
        ),
        Mistake("WriteAheadSink(print, applies=Applies.IDEMPOTENT, folder='~/rows')", "which is not expanded"),
        Mistake("read_manifests(None)", "path=None is not a text"),
        Mistake("whole_batches('/out', store_options='s3')", "store_options='s3' is not a mapping"),
        Mistake("compact('gs://bucket/orders')", "names no location for files"),
        Mistake("compact('/out', target_bytes='128 MB')", "target_bytes='128 MB' is not a whole number of 1 or more"),
        Mistake("compact('/out', keep_batches=1)", "keep_batches=1 is not a whole number of 2 or more"),
        Mistake("compact('/out', delete_after_s=-1)", "delete_after_s=-1 is not a number of 0 or more"),
        Mistake("compact('/out', missing_ok='yes')", "missing_ok='yes' is neither True nor False"),
        Mistake("compact('/out', dry_run=1)", "dry_run=1 is neither True nor False"),
        Mistake("compact('/out', store_options='s3')", "store_options='s3' is not a mapping"),
        Mistake("DeltaSink()", "one of them is needed"),
        Mistake("IcebergSink(None)", "table=None is not a text"),
        Mistake("DeltaSink('t', merge_on='id')", "merge_on='id' is one text"),
        Mistake("DeltaSink('t', merge_on=[])", "merge_on=[] names no column"),
        Mistake("DeltaSink('t', delete_when='source.gone')", "delete_when is given without merge_on"),
        Mistake("DeltaSink('t', when_matched=None)", "when_matched is given without merge_on"),
        Mistake("DeltaSink('t', merge_on=['id'], when_matched='update')", "when_matched='update' is not known"),
        Mistake("DeltaSink('t', merge_on=['id'], when_matched={'n': 1})", "when_matched['n']=1 is not a text"),
        Mistake("DeltaSink('t', merge_on=['id'], when_not_matched={})", "when_not_matched={} sets no column"),
        Mistake("DeltaSink('t', merge_on=['id'], order_by='at')", "order_by='at' is one text"),
        Mistake("DeltaSink('t', merge_on=['id'], evolve_schema='yes')", "is neither True nor False"),
        Mistake(
            "IcebergSink('t', merge_on=['id'], when_matched=None, update_when='source.n > 0')", "would decide nothing"
        ),
        Mistake(
            "IcebergSink('t', merge_on=['id'], when_matched=None, when_not_matched=None)", "the merge would do nothing"
        ),
        Mistake("GroupOffsets('', settings)", "group='' is not a group id"),
        Mistake("GroupOffsets('g', 'broker:9092')", "settings='broker:9092' is not a mapping"),
        Mistake("GroupOffsets('g', settings, topics='orders')", "topics='orders' is one text"),
        Mistake("GroupOffsets('g', settings, deadline_s='5')", "deadline_s='5' is not a number above 0"),
        Mistake("SchemaRegistry('http://registry:8081')", "settings='http://registry:8081' is not a mapping"),
        Mistake("SchemaRegistry({'uri': 'http://registry:8081'})", "has no url"),
        Mistake("spark_packages(4)", "version='4' is not a release"),
        Mistake(
            "from_registry_avro('value', subject='orders-value', registry='http://registry:8081')", "SchemaRegistry("
        ),
        Mistake("read_kafka('local[2]', settings, topics='orders')", "spark=<str> is not a SparkSession"),
        Mistake("ExactlyOnce('kafka', checkpoint='/cp')", "sinks='kafka' is not a sink"),
        Mistake("ExactlyOnce([], checkpoint='/cp')", "at least one sink is needed"),
        Mistake("ExactlyOnce([sink, 'files'], checkpoint='/cp')", "sinks='files' is not a sink"),
        Mistake("ExactlyOnce(KafkaSink, checkpoint='/cp')", "is not a sink"),
        Mistake("ExactlyOnce([KafkaSink(settings), KafkaSink(settings)], checkpoint='/cp')", "their names must differ"),
        Mistake("ExactlyOnce({sink: 'amount > 0'}, checkpoint='/cp')", "it must be a function of a DataFrame, or None"),
        Mistake("ExactlyOnce(sink)", "missing 1 required positional argument: 'checkpoint'", TypeError),
        Mistake("ExactlyOnce(sink, checkpoint='')", "checkpoint='' names no folder"),
        Mistake("ExactlyOnce(sink, checkpoint=None)", "checkpoint=None names no folder"),
        Mistake("ExactlyOnce(sink, checkpoint='~/cp')", "which is not expanded"),
        Mistake("ExactlyOnce(sink, checkpoint='/data/cp ')", "begins or ends with a space"),
        Mistake("ExactlyOnce(sink, checkpoint='s3://bucket/cp')", "Give the same bucket as s3a://"),
        Mistake("ExactlyOnce(sink, checkpoint='dbfs:/cp')", "/dbfs/… is the same folder"),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', checkpoint_moved='no')", "checkpoint_moved='no' is neither"),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', group_offsets='g')", "group_offsets='g' is not a GroupOffsets"),
        Mistake(
            "ExactlyOnce(sink, checkpoint='/cp', outage_patience_s='300')", "outage_patience_s='300' is not a number"
        ),
        Mistake(
            "ExactlyOnce(sink, checkpoint='/cp', outage_patience_s=0)", "outage_patience_s=0 is not a number above 0"
        ),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', outage_patience_s=float('nan'))", "outage_patience_s=nan"),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', outage_patience_s=True)", "outage_patience_s=True"),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', accept_lost_batches=41)", "accept_lost_batches=<int> is not"),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', dead_letters='dead')", "dead_letters='dead' is neither a sink"),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', dead_letters=sink)", "two sinks are called 'kafka'"),
        Mistake(
            "ExactlyOnce(FilesSink('/out'), checkpoint='/cp', dead_letters=sink)",
            "none of the sinks ['files'] reports the rows that its system refuses",
        ),
        Mistake(
            "ExactlyOnce({(files := FilesSink('/out')): None}, checkpoint='/cp', dead_letters={files: sink})",
            "which does not report the rows that its system refuses",
        ),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', dead_letters=DeltaSink('/t'))", "after the decision only"),
        Mistake(
            "ExactlyOnce(sink, checkpoint='/cp', dead_letters=FilesSink('/out', guarantee=Guarantee.AT_LEAST_ONCE))",
            "accepted and refused rows would not be exactly the input",
        ),
        Mistake(
            "ExactlyOnce({sink: None, KafkaSink(settings, name='other'): lambda df: df}, checkpoint='/cp', "
            "dead_letters=FilesSink('/out'))",
            "would take rows of several views",
        ),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', max_refused=0)", "max_refused=0"),
        Mistake("ExactlyOnce(sink, checkpoint='/cp', listener='print')", "listener='print' is not a function"),
    ]
    # Which optional module each of these requires.
    missing = {
        "boto3": "FilesSink('s3://bucket/orders')",
        "hdfs_native": "FilesSink('hdfs://node:8020/orders')",
        "psycopg": "PostgresSink('dbname=shop', table='t')",
        "pymysql": "MySQLSink({'database': 'shop'}, table='t')",
        "redis": "RedisSink()",
    }
    settings_of = {"bootstrap.servers": "broker:9092"}
    public = [sparkonce, sparkonce.avro, sparkonce.files, sparkonce.write_ahead, sparkonce_pravega, sparkonce_rabbitmq]
    names = {
        **{name: getattr(module, name) for module in public for name in module.__all__},
        "settings": settings_of,
        "sink": sparkonce.KafkaSink(settings_of, topic="totals"),
    }
    rows = [(one, said(one, names)) for one in made_by_mistake]
    for module, code in missing.items():
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            one = Mistake(code, "pip install 'sparkonce[")
            rows.append((one, said(one, names)))
    check(rows)
