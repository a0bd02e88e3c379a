import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;

/** The admin client. */
final class Admins {
    static Object run(String op, JsonNode call) throws Exception {
        try (Admin admin = Admin.create(Driver.settings(call))) {
            String topic = call.path("topic").asText();
            TopicPartition first = new TopicPartition(topic, 0);
            switch (op) {
                case "create_topic":
                    return create(admin, topic, call);
                case "delete_topic":
                    admin.deleteTopics(List.of(topic)).all().get();
                    return null;
                case "delete_topic_by_id":
                    admin.deleteTopics(TopicCollection.ofTopicIds(
                        List.of(Uuid.fromString(call.get("id").asText())))).all().get();
                    return null;
                case "list_topics":
                    return admin.listTopics().names().get();
                case "describe_topic":
                    return topic(admin.describeTopics(List.of(topic))
                        .allTopicNames().get().get(topic));
                case "describe_topic_by_id":
                    return topic(admin.describeTopics(TopicCollection.ofTopicIds(
                        List.of(Uuid.fromString(call.get("id").asText()))))
                        .allTopicIds().get().values().iterator().next());
                case "create_partitions":
                    admin.createPartitions(Map.of(topic,
                        NewPartitions.increaseTo(call.get("count").asInt()))).all().get();
                    return null;
                case "describe_configs":
                    return configs(admin, resource(call));
                case "alter_configs":
                    return alter(admin, call);
                case "list_config_resources":
                    return admin.listConfigResources().all().get().stream()
                        .map(found -> List.of(found.type().name(), found.name()))
                        .collect(Collectors.toList());
                case "delete_records":
                    return admin.deleteRecords(Map.of(first,
                        RecordsToDelete.beforeOffset(call.get("offset").asLong())))
                        .lowWatermarks().get(first).get().lowWatermark();
                case "list_offsets":
                    return listOffsets(admin, first);
                case "describe_cluster":
                    return cluster(admin.describeCluster());
                case "describe_log_dirs":
                    return logDirs(admin);
                case "describe_producers":
                    return producers(admin, first);
                default:
                    throw new IllegalArgumentException(op);
            }
        }
    }

    private static Object create(Admin admin, String name, JsonNode call) throws Exception {
        Map<String, String> configs = new LinkedHashMap<>();
        call.path("configs").fields().forEachRemaining(
            entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        NewTopic topic = new NewTopic(
            name, call.path("partitions").asInt(1), (short) call.path("replicas").asInt(1));
        CreateTopicsOptions options =
            new CreateTopicsOptions().validateOnly(call.path("validate").asBoolean());
        var made = admin.createTopics(List.of(topic.configs(configs)), options);
        made.all().get();
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("partitions", made.numPartitions(name).get());
        answer.put("replicas", made.replicationFactor(name).get());
        answer.put("id", made.topicId(name).get().toString());
        answer.put("retention", made.config(name).get().get("retention.ms").value());
        return answer;
    }

    private static Object topic(TopicDescription found) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("name", found.name());
        answer.put("id", found.topicId().toString());
        answer.put("internal", found.isInternal());
        List<Object> partitions = new ArrayList<>();
        for (TopicPartitionInfo each : found.partitions()) {
            partitions.add(
                List.of(each.partition(), each.leader().id(), ids(each.replicas()), ids(each.isr())));
        }
        answer.put("partitions", partitions);
        return answer;
    }

    private static List<Integer> ids(Collection<Node> nodes) {
        return nodes.stream().map(Node::id).collect(Collectors.toList());
    }

    private static ConfigResource resource(JsonNode call) {
        return new ConfigResource(
            ConfigResource.Type.valueOf(call.get("type").asText()), call.get("name").asText());
    }

    private static Object configs(Admin admin, ConfigResource resource) throws Exception {
        DescribeConfigsOptions options =
            new DescribeConfigsOptions().includeDocumentation(true).includeSynonyms(true);
        Map<String, Object> answer = new TreeMap<>();
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource), options)
            .all().get().get(resource).entries()) {
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("value", entry.value());
            row.put("source", entry.source().name());
            row.put("type", entry.type().name());
            row.put("read_only", entry.isReadOnly());
            row.put("documentation", entry.documentation());
            row.put("synonyms", entry.synonyms().stream()
                .map(each -> List.of(each.name(), String.valueOf(each.value()), each.source().name()))
                .collect(Collectors.toList()));
            answer.put(entry.name(), row);
        }
        return answer;
    }

    private static Object alter(Admin admin, JsonNode call) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        for (JsonNode change : call.get("changes")) {
            changes.add(new AlterConfigOp(
                new ConfigEntry(change.get(1).asText(), change.path(2).asText("")),
                AlterConfigOp.OpType.valueOf(change.get(0).asText())));
        }
        admin.incrementalAlterConfigs(Map.of(resource(call), changes)).all().get();
        return null;
    }

    private static Object listOffsets(Admin admin, TopicPartition partition) throws Exception {
        Map<String, Object> answer = new LinkedHashMap<>();
        Map<String, OffsetSpec> specs = Map.of("earliest", OffsetSpec.earliest(),
            "latest", OffsetSpec.latest(), "max_timestamp", OffsetSpec.maxTimestamp());
        for (String name : specs.keySet()) {
            ListOffsetsResult.ListOffsetsResultInfo found =
                admin.listOffsets(Map.of(partition, specs.get(name))).partitionResult(partition).get();
            answer.put(name, List.of(found.offset(), found.timestamp()));
        }
        return answer;
    }

    private static Object cluster(DescribeClusterResult found) throws Exception {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", found.clusterId().get());
        answer.put("controller", found.controller().get().id());
        answer.put("nodes", found.nodes().get().stream()
            .map(node -> List.of(node.id(), node.host(), node.port()))
            .collect(Collectors.toList()));
        return answer;
    }

    private static Object logDirs(Admin admin) throws Exception {
        Map<String, Object> answer = new LinkedHashMap<>();
        for (Map.Entry<String, LogDirDescription> found :
            admin.describeLogDirs(List.of(0)).allDescriptions().get().get(0).entrySet()) {
            Map<String, Object> replicas = new TreeMap<>();
            found.getValue().replicaInfos().forEach(
                (partition, info) -> replicas.put(partition.toString(), info.size()));
            answer.put(found.getKey(), Map.of(
                "total", found.getValue().totalBytes().orElse(-1),
                "usable", found.getValue().usableBytes().orElse(-1),
                "replicas", replicas));
        }
        return answer;
    }

    private static Object producers(Admin admin, TopicPartition partition) throws Exception {
        List<Object> answer = new ArrayList<>();
        for (ProducerState state : admin.describeProducers(List.of(partition))
            .partitionResult(partition).get().activeProducers()) {
            answer.add(List.of(state.producerId(), state.producerEpoch(), state.lastSequence(),
                state.lastTimestamp(), state.currentTransactionStartOffset().orElse(-1)));
        }
        return answer;
    }
}
