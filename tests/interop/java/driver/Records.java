import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The producer and the consumer. */
final class Records {
    private static final Duration TIMEOUT = Duration.ofSeconds(20);

    static Object produce(JsonNode call) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(call)) {
            for (JsonNode row : call.get("rows")) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    call.get("topic").asText(),
                    row.path("partition").asInt(0),
                    row.get("timestamp").asLong(),
                    bytes(row.get("key")),
                    bytes(row.get("value")));
                for (JsonNode header : row.get("headers")) {
                    record.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                sent.add(producer.send(record));
            }
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> future : sent) {
                offsets.add(future.get().offset());
            }
            return offsets;
        }
    }

    /** Reads "count" records of assigned partitions, each from its offset. */
    static Object consume(JsonNode call) {
        int count = call.get("count").asInt();
        List<Object> rows = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(call)) {
            assign(consumer, call.get("from"));
            long end = System.currentTimeMillis() + TIMEOUT.toMillis();
            while (rows.size() < count && System.currentTimeMillis() < end) {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> rows.add(row(record)));
            }
        }
        return rows;
    }

    /** One consumer sees what is written to its partitions while it polls, round by round. */
    static Object follow(JsonNode call) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = call.get("topic").asText();
        int partitions = call.get("from").size();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(call);
            KafkaProducer<byte[], byte[]> producer = producer(call)) {
            assign(consumer, call.get("from"));
            for (int i = 0; i < call.get("rounds").asInt(); i++) {
                byte[] value = String.valueOf(i).getBytes();
                producer.send(new ProducerRecord<>(topic, i % partitions, null, value)).get();
                long end = System.currentTimeMillis() + TIMEOUT.toMillis();
                while (seen.size() <= i && System.currentTimeMillis() < end) {
                    consumer.poll(Duration.ofMillis(500)).forEach(
                        found -> seen.add(List.of(found.partition(), new String(found.value()))));
                }
            }
            consumer.close(Duration.ZERO);  // else it waits for the last fetch
        }
        return seen;
    }

    /** The first and the end offset of a partition, and the first at or after each time. */
    static Object offsets(JsonNode call) {
        TopicPartition partition = new TopicPartition(call.get("topic").asText(), 0);
        List<TopicPartition> one = List.of(partition);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(call)) {
            List<Object> times = new ArrayList<>();
            for (JsonNode time : call.get("times")) {
                OffsetAndTimestamp found =
                    consumer.offsetsForTimes(Map.of(partition, time.asLong())).get(partition);
                times.add(found == null ? null : List.of(found.offset(), found.timestamp()));
            }
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("beginning", consumer.beginningOffsets(one).get(partition));
            answer.put("end", consumer.endOffsets(one).get(partition));
            answer.put("times", times);
            return answer;
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(JsonNode call) {
        Properties settings = Driver.settings(call);
        return new KafkaProducer<>(
            settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode call) {
        Properties settings = Driver.settings(call);
        settings.putIfAbsent("auto.offset.reset", "none");
        return new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void assign(KafkaConsumer<byte[], byte[]> consumer, JsonNode from) {
        Map<TopicPartition, Long> starts = new LinkedHashMap<>();
        from.forEach(each -> starts.put(
            new TopicPartition(each.get(0).asText(), each.get(1).asInt()), each.get(2).asLong()));
        consumer.assign(starts.keySet());
        starts.forEach(consumer::seek);
    }

    private static Map<String, Object> row(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("partition", record.partition());
        row.put("offset", record.offset());
        row.put("timestamp", record.timestamp());
        row.put("key", text(record.key()));
        row.put("value", text(record.value()));
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<Object> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        row.put("headers", headers);
        return row;
    }

    private static byte[] bytes(JsonNode value) {
        return value == null || value.isNull() ? null : Base64.getDecoder().decode(value.asText());
    }

    private static String text(byte[] value) {
        return value == null ? null : Base64.getEncoder().encodeToString(value);
    }
}
