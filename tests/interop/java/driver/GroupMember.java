import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A member of a consumer group; says what happens in lines of JSON, as group_worker.py does. */
public class GroupMember {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, String> STRATEGIES = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
        "cooperative", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    public static void main(String[] args) throws Exception {
        JsonNode task = JSON.readTree(args[0]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", task.get("bootstrap").asText());
        settings.put("group.id", task.get("group").asText());
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        if (task.path("protocol").asText("classic").equals("consumer")) {
            settings.put("group.protocol", "consumer");
        } else {
            settings.put("session.timeout.ms", task.path("session_ms").asText());
            settings.put("heartbeat.interval.ms", "500");
            settings.put("partition.assignment.strategy",
                STRATEGIES.get(task.path("strategy").asText("range")));
        }
        if (task.has("instance")) settings.put("group.instance.id", task.get("instance").asText());
        List<String> topics = new ArrayList<>();
        task.get("topics").forEach(topic -> topics.add(topic.asText()));

        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings);
        AtomicBoolean ended = new AtomicBoolean();
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ended.set(true);
            consumer.wakeup();
            try {
                main.join(30_000);
            } catch (InterruptedException e) {
                // the process ends all the same
            }
        }));
        ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {
            public void onPartitionsAssigned(Collection<TopicPartition> found) {
                say("assigned", Map.of("partitions", rows(found)));
            }

            public void onPartitionsRevoked(Collection<TopicPartition> found) {
                say("revoked", Map.of("partitions", rows(found)));
            }
        };
        if (task.has("pattern")) {
            consumer.subscribe(new SubscriptionPattern(task.get("pattern").asText()), listener);
        } else {
            consumer.subscribe(topics, listener);
        }
        while (!ended.get()) {
            try {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    TopicPartition place = new TopicPartition(record.topic(), record.partition());
                    consumer.commitSync(Map.of(place, new OffsetAndMetadata(record.offset() + 1)));
                    say("record", Map.of("partition", record.partition(),
                        "offset", record.offset(), "value", record.value()));
                }
            } catch (WakeupException e) {
                break;
            } catch (FencedInstanceIdException e) {
                say("error", Map.of("text", "fenced: " + e));
                break;
            } catch (InvalidRegularExpression e) {
                say("error", Map.of("text", e.toString()));
                break;
            } catch (KafkaException e) {
                say("error", Map.of("text", e.toString()));
            }
        }
        consumer.close();
        say("closed", Map.of());
    }

    private static List<List<Object>> rows(Collection<TopicPartition> found) {
        List<List<Object>> rows = new ArrayList<>();
        for (TopicPartition place : found) rows.add(List.of(place.topic(), place.partition()));
        return rows;
    }

    private static synchronized void say(String event, Map<String, ?> more) {
        Map<String, Object> line = new java.util.TreeMap<>(more);
        line.put("event", event);
        try {
            System.out.println(JSON.writeValueAsString(line));
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
    }
}
