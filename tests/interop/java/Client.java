import io.openmessaging.storage.dledger.client.DLedgerClient;
import io.openmessaging.storage.dledger.client.DLedgerClientRpcNettyService;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.GetEntriesResponse;
import io.openmessaging.storage.dledger.protocol.LeadershipTransferResponse;
import io.openmessaging.storage.dledger.protocol.MetadataRequest;
import io.openmessaging.storage.dledger.protocol.MetadataResponse;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;

/**
 * Java's own DLedgerClient, told what to do by lines on standard input; one line of answer for each.
 *
 * Arguments: group, peers. Commands: "append BASE64" (answer: code index), "get INDEX" (answer: code
 * term BASE64), "transfer FROM TO TERM" (answer: code), "metadata ID ADDRESS" (answer: code leader peers),
 * The end of the input ends the process.
 */
public final class Client {
    private Client() {
    }

    public static void main(String[] arguments) throws Exception {
        DLedgerClient client = new DLedgerClient(arguments[0], arguments[1]);
        client.startup();
        System.out.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            if (words[0].equals("append")) {
                AppendEntryResponse response = client.append(Base64.getDecoder().decode(words[1]));
                System.out.println(response.getCode() + " " + response.getIndex());
            } else if (words[0].equals("get")) {
                System.out.println(describe(client.get(Long.parseLong(words[1]))));
            } else if (words[0].equals("transfer")) {
                LeadershipTransferResponse response =
                    client.leadershipTransfer(words[1], words[2], Long.parseLong(words[3]));
                System.out.println(response.getCode());
            } else if (words[0].equals("metadata")) {
                System.out.println(metadata(arguments[0], words[1], words[2]));
            } else if (words[0].equals("stop")) {
                System.out.println("stopped");
                break;
            } else {
                System.out.println("what is " + words[0] + "?");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static String metadata(String group, String id, String address) throws Exception {
        DLedgerClientRpcNettyService rpc = new DLedgerClientRpcNettyService();
        rpc.startup();
        rpc.updatePeers(id + "-" + address);
        MetadataRequest request = new MetadataRequest();
        request.setGroup(group);
        request.setRemoteId(id);
        MetadataResponse response = rpc.metadata(request).get();
        rpc.shutdown();
        return response.getCode() + " " + response.getLeaderId() + " " + response.getPeers().size();
    }

    private static String describe(GetEntriesResponse response) {
        if (response.getEntries() == null || response.getEntries().isEmpty()) {
            return response.getCode() + " -1 ";
        }
        DLedgerEntry entry = response.getEntries().get(0);
        byte[] body = entry.getBody() == null ? new byte[0] : entry.getBody();
        return response.getCode() + " " + entry.getTerm() + " " + Base64.getEncoder().encodeToString(body);
    }
}
