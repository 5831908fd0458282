import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.MessageVersion;
import org.apache.rocketmq.store.MessageExtEncoder;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * The encoder of a RocketMQ 5 broker: "RECORD PROPERTIES", both in Base64, is answered by the record that the
 * broker would write for the same message. It leaves the physical offset 0, as the broker does at this point.
 */
public final class Encoder {
    private Encoder() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        MessageExtEncoder encoder = new MessageExtEncoder(1 << 20, new MessageStoreConfig());
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            if (words[0].equals("stop")) {
                answers.println("stopped");
                break;
            }
            byte[] record = Base64.getDecoder().decode(words[0]);
            MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(record), true, false);
            MessageExtBrokerInner inner = new MessageExtBrokerInner();
            inner.setTopic(message.getTopic());
            inner.setBody(message.getBody());
            inner.setPropertiesString(
                new String(Base64.getDecoder().decode(words[1]), StandardCharsets.UTF_8));
            inner.setVersion(MessageVersion.valueOfMagicCode(ByteBuffer.wrap(record).getInt(4)));
            inner.setBodyCRC(message.getBodyCRC());
            inner.setQueueId(message.getQueueId());
            inner.setFlag(message.getFlag());
            inner.setQueueOffset(message.getQueueOffset());
            inner.setSysFlag(message.getSysFlag());
            inner.setBornTimestamp(message.getBornTimestamp());
            inner.setBornHost(message.getBornHost());
            inner.setStoreTimestamp(message.getStoreTimestamp());
            inner.setStoreHost(message.getStoreHost());
            inner.setReconsumeTimes(message.getReconsumeTimes());
            inner.setPreparedTransactionOffset(message.getPreparedTransactionOffset());
            if (encoder.encode(inner) != null) {
                answers.println("refused");
                continue;
            }
            ByteBuffer written = encoder.getEncoderBuffer();
            byte[] bytes = new byte[written.getInt(0)];
            written.get(bytes);
            answers.println(Base64.getEncoder().encodeToString(bytes));
        }
        Runtime.getRuntime().halt(0);
    }
}
