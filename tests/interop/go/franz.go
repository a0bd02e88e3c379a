package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Franz is franz-go.
type Franz struct{}

var franzCodecs = map[string]kgo.CompressionCodec{
	"":       kgo.NoCompression(),
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func patience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 20*time.Second)
}

func (Franz) Produce(call Call) ([]int64, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(call.Bootstrap),
		kgo.ProducerBatchCompression(franzCodecs[call.Codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.AllowAutoTopicCreation(),
		kgo.ProducerBatchMaxBytes(10_000_000),
		kgo.UnknownTopicRetries(1),
	}
	if call.Plain {
		options = append(options, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := patience()
	defer cancel()
	records := make([]*kgo.Record, 0, len(call.Rows))
	for _, row := range call.Rows {
		record := &kgo.Record{
			Topic: call.Topic, Partition: row.Partition, Key: row.Key, Value: row.Value,
			Timestamp: time.UnixMilli(row.Timestamp),
		}
		for _, header := range row.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
		}
		records = append(records, record)
	}
	var offsets []int64
	for _, result := range client.ProduceSync(ctx, records...) {
		if result.Err != nil {
			return nil, result.Err
		}
		offsets = append(offsets, result.Record.Offset)
	}
	return offsets, nil
}

func (Franz) Consume(call Call) ([]Row, error) {
	start := map[string]map[int32]kgo.Offset{}
	for _, from := range call.From {
		topic, partition := from[0].(string), int32(from[1].(float64))
		if start[topic] == nil {
			start[topic] = map[int32]kgo.Offset{}
		}
		start[topic][partition] = kgo.NewOffset().At(int64(from[2].(float64)))
		if call.Time != 0 {
			start[topic][partition] = kgo.NewOffset().AfterMilli(call.Time)
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(call.Bootstrap), kgo.ConsumePartitions(start), kgo.FetchMaxWait(time.Second))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := patience()
	defer cancel()
	rows := []Row{}
	for len(rows) < call.Count {
		fetches := client.PollRecords(ctx, call.Count-len(rows))
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			row := Row{record.Key, record.Value, []Header{}, record.Timestamp.UnixMilli(), record.Partition, record.Offset}
			for _, header := range record.Headers {
				row.Headers = append(row.Headers, Header{header.Key, header.Value})
			}
			rows = append(rows, row)
		})
	}
	return rows, nil
}

func (Franz) Admin(call Call) (any, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(call.Bootstrap))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	ctx, cancel := patience()
	defer cancel()
	switch call.Op {
	case "create_topic":
		configs := map[string]*string{}
		for name, value := range call.Configs {
			configs[name] = &value
		}
		_, err := admin.CreateTopic(ctx, max(call.Partitions, 1), 1, configs, call.Topic)
		return nil, err
	case "delete_topic":
		_, err := admin.DeleteTopic(ctx, call.Topic)
		return nil, err
	case "list_topics":
		topics, err := admin.ListTopics(ctx)
		return topics.Names(), err
	case "describe_topic":
		topics, err := admin.ListTopics(ctx, call.Topic)
		if err == nil {
			err = topics[call.Topic].Err
		}
		if err != nil {
			return nil, err
		}
		found := topics[call.Topic]
		return map[string]any{"partitions": len(found.Partitions), "id": found.ID.String()}, nil
	case "create_partitions":
		answers, err := admin.UpdatePartitions(ctx, int(call.Partitions), call.Topic)
		if err == nil {
			err = answers.Error()
		}
		return nil, err
	case "describe_configs":
		found, err := admin.DescribeTopicConfigs(ctx, call.Topic)
		if err == nil {
			err = found[0].Err
		}
		values := map[string]string{}
		if err == nil {
			for _, config := range found[0].Configs {
				values[config.Key] = config.MaybeValue()
			}
		}
		return values, err
	case "alter_configs":
		var changes []kadm.AlterConfig
		for name, value := range call.Configs {
			changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
		}
		answers, err := admin.AlterTopicConfigs(ctx, changes, call.Topic)
		if err == nil {
			err = answers[0].Err
		}
		return nil, err
	case "delete_records":
		offsets := kadm.Offsets{}
		offsets.AddOffset(call.Topic, 0, call.Offset, -1)
		answers, err := admin.DeleteRecords(ctx, offsets)
		if err == nil {
			err = answers.Error()
		}
		return nil, err
	case "list_offsets":
		start, err := admin.ListStartOffsets(ctx, call.Topic)
		if err != nil {
			return nil, err
		}
		end, err := admin.ListEndOffsets(ctx, call.Topic)
		if err != nil {
			return nil, err
		}
		return []int64{start[call.Topic][0].Offset, end[call.Topic][0].Offset}, nil
	case "describe_cluster":
		found, err := admin.BrokerMetadata(ctx)
		if err != nil {
			return nil, err
		}
		return []any{found.Controller, found.Brokers.NodeIDs()}, nil
	case "describe_log_dirs":
		found, err := admin.DescribeAllLogDirs(ctx, nil)
		size := int64(-1)
		found.Each(func(dir kadm.DescribedLogDir) {
			if partition, ok := dir.Topics.Lookup(call.Topic, 0); ok {
				size = partition.Size
			}
		})
		return size, err
	}
	return franzGroups(ctx, admin, call)
}

func franzGroups(ctx context.Context, admin *kadm.Client, call Call) (any, error) {
	switch call.Op {
	case "list_groups":
		found, err := admin.ListGroups(ctx)
		return found.Groups(), err
	case "describe_group":
		found, err := admin.DescribeGroups(ctx, call.Group)
		if err == nil {
			err = found.Error()
		}
		return found[call.Group].State, err
	case "commit":
		offsets := kadm.Offsets{}
		offsets.AddOffset(call.Topic, 0, call.Offset, -1)
		return nil, admin.CommitAllOffsets(ctx, call.Group, offsets)
	case "committed":
		found, err := admin.FetchOffsets(ctx, call.Group)
		if err != nil {
			return nil, err
		}
		if offset, ok := found.Lookup(call.Topic, 0); ok {
			return offset.At, nil
		}
		return -1, nil
	case "delete_offset":
		topics := kadm.TopicsSet{}
		topics.Add(call.Topic, 0)
		found, err := admin.DeleteOffsets(ctx, call.Group, topics)
		if err == nil {
			err = found.Error()
		}
		return nil, err
	case "delete_group":
		_, err := admin.DeleteGroup(ctx, call.Group)
		return nil, err
	}
	return nil, fmt.Errorf("no such call: %s", call.Op)
}
