import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;

/**
 * Kafka's own Java client, told what to do over standard input; see ../../drivers.py.
 *
 * <p>In, one line a call: {"op": "produce", "bootstrap": "...", ...}. Out, one line an answer:
 * {"ok": value} or {"error": {"type", "message"}}. Bytes travel as base64.
 */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("ok", run((ObjectNode) JSON.readTree(line)));
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer.put("error", Map.of(
                    "type", cause.getClass().getSimpleName(),
                    "message", String.valueOf(cause.getMessage())));
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private static Object run(ObjectNode call) throws Exception {
        String op = call.get("op").asText();
        switch (op) {
            case "version": return version();
            case "produce": return Records.produce(call);
            case "consume": return Records.consume(call);
            case "follow": return Records.follow(call);
            case "offsets": return Records.offsets(call);
            default: return Admins.run(op, call);
        }
    }

    /** The class that knows it has moved in 4.4, the file has not. */
    private static String version() throws Exception {
        Properties found = new Properties();
        found.load(Driver.class.getResourceAsStream("/kafka/kafka-version.properties"));
        return found.getProperty("version");
    }

    /** The settings of a client: where the broker is, and what the caller says. */
    static Properties settings(JsonNode call) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", call.get("bootstrap").asText());
        call.path("settings").fields().forEachRemaining(
            entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        return settings;
    }
}
