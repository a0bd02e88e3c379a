import java.util.BitSet;
import java.util.HexFormat;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * An instance of a Streams application, at least once; see ../../test_streams.py.
 *
 * <p>In: values "key number". They are grouped by that key, which goes through a repartition topic,
 * into two stores with changelogs. Out: to TOPIC-seen which numbers a key has had (bits, in
 * hexadecimal; a number that is processed twice changes nothing), and to TOPIC-counts how many
 * records (one that is processed twice counts twice). Arguments: bootstrap, application, input topic,
 * state directory.
 */
public final class Seen {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("application.id", args[1]);
        settings.put("state.dir", args[3]);
        settings.put("client.id", args[3].substring(args[3].lastIndexOf('/') + 1));
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        settings.put("commit.interval.ms", "200");
        settings.put("statestore.cache.max.bytes", "100000");
        settings.put("consumer.auto.offset.reset", "earliest");
        // The shortest that a broker allows: instances are killed, and the others wait for it.
        settings.put("consumer.session.timeout.ms", "6000");
        settings.put("consumer.heartbeat.interval.ms", "500");

        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, String> grouped = builder.<String, String>stream(args[2])
            .map((key, value) -> {
                String[] words = value.split(" ");
                return new KeyValue<>(words[0], words[1]);
            })
            .groupByKey(Grouped.as("by-key"));
        grouped.aggregate(() -> "", Seen::with, Materialized.<String, String,
            KeyValueStore<Bytes, byte[]>>as("seen")).toStream().to(args[2] + "-seen");
        grouped.count(Materialized.as("counts")).toStream().mapValues(String::valueOf)
            .to(args[2] + "-counts");

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
                .StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> {
            System.out.println(now);
            if (now == KafkaStreams.State.ERROR) Runtime.getRuntime().halt(1);
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static String with(String key, String number, String seen) {
        BitSet bits = BitSet.valueOf(HexFormat.of().parseHex(seen));
        bits.set(Integer.parseInt(number));
        return HexFormat.of().formatHex(bits.toByteArray());
    }
}
