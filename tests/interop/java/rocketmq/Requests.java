import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A producer that asks, and a consumer that replies: "request TOPIC BODY" is answered by the reply. */
public final class Requests {
    private Requests() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        DefaultMQProducer replier = new DefaultMQProducer("repliers");
        replier.setNamesrvAddr(arguments[0]);
        replier.setInstanceName("replier");
        replier.setPollNameServerInterval(500);
        replier.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("answering");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName("consumer");
        consumer.setPollNameServerInterval(500);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("asked", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String body = "re: " + new String(message.getBody(), StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8)), 3000);
                } catch (Exception failed) {
                    failed.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("askers");
        producer.setNamesrvAddr(arguments[0]);
        producer.setInstanceName("asker");
        producer.setPollNameServerInterval(500);
        producer.start();
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            String answer;
            try {
                Message reply = producer.request(
                    new Message(words[1], words[2].getBytes(StandardCharsets.UTF_8)), 10_000);
                answer = new String(reply.getBody(), StandardCharsets.UTF_8);
            } catch (Exception failed) {
                answer = "failed " + String.valueOf(failed).replace('\n', ' ');
            }
            answers.println(answer);
        }
        System.exit(0);
    }
}
