import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own reading and writing of messages: one line of Base64 in, one line out.
 *
 * "message DATA": the fields of a record, the body unpacked; "properties DATA": names and values,
 * sorted; "batch DATA": what Java writes again for the body of a batch request; "hash DATA": of a text.
 */
public final class Codec {
    private Codec() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            if (words[0].equals("stop")) {
                answers.println("stopped");
                break;
            }
            byte[] data = Base64.getDecoder().decode(words[1]);
            String text = new String(data, StandardCharsets.UTF_8);
            if (words[0].equals("message")) {
                answers.println(message(data));
            } else if (words[0].equals("properties")) {
                answers.println(properties(MessageDecoder.string2messageProperties(text)));
            } else if (words[0].equals("batch")) {
                List<Message> messages = MessageDecoder.decodeMessages(ByteBuffer.wrap(data));
                answers.println(base64(MessageDecoder.encodeMessages(messages)));
            } else {
                answers.println(text.hashCode());
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static String message(byte[] data) throws Exception {
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(data), true, true);
        if (message == null) {
            return "none";
        }
        return String.join(" ",
            base64(message.getTopic().getBytes(StandardCharsets.UTF_8)),
            base64(message.getBody() == null ? new byte[0] : message.getBody()),
            String.valueOf(message.getBodyCRC()), String.valueOf(message.getQueueId()),
            String.valueOf(message.getFlag()), String.valueOf(message.getQueueOffset()),
            String.valueOf(message.getCommitLogOffset()), String.valueOf(message.getSysFlag()),
            String.valueOf(message.getBornTimestamp()), host(message.getBornHost()),
            String.valueOf(message.getStoreTimestamp()), host(message.getStoreHost()),
            String.valueOf(message.getReconsumeTimes()),
            String.valueOf(message.getPreparedTransactionOffset()),
            properties(message.getProperties()));
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return base64(host.getAddress().getAddress()) + "/" + host.getPort();
    }

    private static String properties(Map<String, String> properties) {
        StringBuilder text = new StringBuilder();
        if (properties == null) {
            return "";
        }
        for (Map.Entry<String, String> entry : new TreeMap<>(properties).entrySet()) {
            text.append(entry.getKey()).append('\u0003').append(entry.getValue()).append('\u0004');
        }
        return base64(text.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static String base64(byte[] data) {
        return Base64.getEncoder().encodeToString(data);
    }
}
