"""kafka-topics.sh without Java, as far as librdkafka's tests use it.

python kafka_topics.py --bootstrap-server HOST:PORT --create --topic NAME --partitions 3
"""

import argparse

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-server", required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    for action in ("--create", "--alter", "--delete"):
        what.add_argument(action, action="store_true")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=-1)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--config", action="append", default=[])
    given = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap_server})
    if given.create:
        config = dict(setting.split("=", 1) for setting in given.config)
        new = NewTopic(given.topic, given.partitions, given.replication_factor, config=config)
        done = admin.create_topics([new])
    elif given.alter:
        done = admin.create_partitions([NewPartitions(given.topic, given.partitions)])
    else:
        done = admin.delete_topics([given.topic])
    done[given.topic].result(60)


if __name__ == "__main__":
    main()
