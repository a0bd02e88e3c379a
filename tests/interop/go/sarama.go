package main

import (
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// Sarama is IBM's (once Shopify's) sarama.
type Sarama struct{}

var saramaCodecs = map[string]sarama.CompressionCodec{
	"":       sarama.CompressionNone,
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.MaxMessageBytes = 10_000_000
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.MaxWaitTime = time.Second
	return config
}

func bytes(value []byte) sarama.Encoder {
	if value == nil {
		return nil
	}
	return sarama.ByteEncoder(value)
}

func (Sarama) Produce(call Call) ([]int64, error) {
	config := config()
	config.Producer.Compression = saramaCodecs[call.Codec]
	if !call.Plain {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer([]string{call.Bootstrap}, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for _, row := range call.Rows {
		message := &sarama.ProducerMessage{
			Topic: call.Topic, Partition: row.Partition, Key: bytes(row.Key), Value: bytes(row.Value),
			Timestamp: time.UnixMilli(row.Timestamp),
		}
		for _, header := range row.Headers {
			message.Headers = append(message.Headers,
				sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
		}
		messages = append(messages, message)
	}
	if err := producer.SendMessages(messages); err != nil {
		if errors, ok := err.(sarama.ProducerErrors); ok {
			return nil, errors[0].Err
		}
		return nil, err
	}
	var offsets []int64
	for _, message := range messages {
		offsets = append(offsets, message.Offset)
	}
	return offsets, nil
}

func (Sarama) Consume(call Call) ([]Row, error) {
	client, err := sarama.NewClient([]string{call.Bootstrap}, config())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	messages := make(chan *sarama.ConsumerMessage)
	done := make(chan struct{})
	defer close(done)
	for _, from := range call.From {
		topic, partition, offset := from[0].(string), int32(from[1].(float64)), int64(from[2].(float64))
		if call.Time != 0 {
			if offset, err = client.GetOffset(topic, partition, call.Time); err != nil {
				return nil, err
			}
		}
		assigned, err := consumer.ConsumePartition(topic, partition, offset)
		if err != nil {
			return nil, err
		}
		defer assigned.AsyncClose()
		go func() {
			for message := range assigned.Messages() {
				select {
				case messages <- message:
				case <-done:
				}
			}
		}()
	}
	rows := []Row{}
	timeout := time.After(20 * time.Second)
	for len(rows) < call.Count {
		select {
		case message := <-messages:
			row := Row{message.Key, message.Value, []Header{}, message.Timestamp.UnixMilli(), message.Partition, message.Offset}
			for _, header := range message.Headers {
				row.Headers = append(row.Headers, Header{string(header.Key), header.Value})
			}
			rows = append(rows, row)
		case <-timeout:
			return rows, nil
		}
	}
	return rows, nil
}

func (Sarama) Admin(call Call) (any, error) {
	client, err := sarama.NewClient([]string{call.Bootstrap}, config())
	if err != nil {
		return nil, err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	configs := map[string]*string{}
	for name, value := range call.Configs {
		configs[name] = &value
	}
	switch call.Op {
	case "create_topic":
		detail := &sarama.TopicDetail{
			NumPartitions: max(call.Partitions, 1), ReplicationFactor: 1, ConfigEntries: configs}
		return nil, admin.CreateTopic(call.Topic, detail, false)
	case "delete_topic":
		return nil, admin.DeleteTopic(call.Topic)
	case "list_topics":
		topics, err := admin.ListTopics()
		names := []string{}
		for name := range topics {
			names = append(names, name)
		}
		return names, err
	case "describe_topic":
		topics, err := admin.DescribeTopics([]string{call.Topic})
		if err == nil && topics[0].Err != sarama.ErrNoError {
			err = topics[0].Err
		}
		if err != nil {
			return nil, err
		}
		return map[string]any{"partitions": len(topics[0].Partitions)}, nil
	case "create_partitions":
		return nil, admin.CreatePartitions(call.Topic, call.Partitions, nil, false)
	case "describe_configs":
		found, err := admin.DescribeConfig(
			sarama.ConfigResource{Type: sarama.TopicResource, Name: call.Topic})
		values := map[string]string{}
		for _, entry := range found {
			values[entry.Name] = entry.Value
		}
		return values, err
	case "alter_configs":
		changes := map[string]sarama.IncrementalAlterConfigsEntry{}
		for name, value := range configs {
			changes[name] = sarama.IncrementalAlterConfigsEntry{
				Operation: sarama.IncrementalAlterConfigsOperationSet, Value: value}
		}
		return nil, admin.IncrementalAlterConfig(sarama.TopicResource, call.Topic, changes, false)
	case "delete_records":
		return nil, admin.DeleteRecords(call.Topic, map[int32]int64{0: call.Offset})
	case "list_offsets":
		start, err := client.GetOffset(call.Topic, 0, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		end, err := client.GetOffset(call.Topic, 0, sarama.OffsetNewest)
		return []int64{start, end}, err
	case "describe_cluster":
		brokers, controller, err := admin.DescribeCluster()
		ids := []int32{}
		for _, broker := range brokers {
			ids = append(ids, broker.ID())
		}
		return []any{controller, ids}, err
	case "describe_log_dirs":
		found, err := admin.DescribeLogDirs([]int32{0})
		if err != nil {
			return nil, err
		}
		for _, dir := range found[0] {
			for _, topic := range dir.Topics {
				if topic.Topic == call.Topic {
					return topic.Partitions[0].Size, nil
				}
			}
		}
		return -1, nil
	}
	return saramaGroups(client, admin, call)
}

func saramaGroups(client sarama.Client, admin sarama.ClusterAdmin, call Call) (any, error) {
	switch call.Op {
	case "list_groups":
		found, err := admin.ListConsumerGroups()
		names := []string{}
		for name := range found {
			names = append(names, name)
		}
		return names, err
	case "describe_group":
		found, err := admin.DescribeConsumerGroups([]string{call.Group})
		if err == nil && found[0].Err != sarama.ErrNoError {
			err = found[0].Err
		}
		if err != nil {
			return nil, err
		}
		return found[0].State, nil
	case "commit":
		manager, err := sarama.NewOffsetManagerFromClient(call.Group, client)
		if err != nil {
			return nil, err
		}
		partition, err := manager.ManagePartition(call.Topic, 0)
		if err != nil {
			return nil, err
		}
		partition.MarkOffset(call.Offset, "")
		manager.Commit()
		if err := partition.Close(); err != nil {
			return nil, err
		}
		return nil, manager.Close()
	case "committed":
		found, err := admin.ListConsumerGroupOffsets(
			call.Group, map[string][]int32{call.Topic: {0}})
		if err != nil {
			return nil, err
		}
		return found.GetBlock(call.Topic, 0).Offset, nil
	case "delete_offset":
		return nil, admin.DeleteConsumerGroupOffset(call.Group, call.Topic, 0)
	case "delete_group":
		return nil, admin.DeleteConsumerGroup(call.Group)
	}
	return nil, fmt.Errorf("no such call: %s", call.Op)
}
