package io.towa.backup;

import java.io.EOFException;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/** The other side of a conversation, for tests: what a tool sends and understands, and what it should not. */
final class Tool implements AutoCloseable {
    final SocketChannel channel;
    /** Pages, as they came last. */
    final Map<Integer, byte[]> pages = new HashMap<>();
    long sent;

    record Message(int kind, ByteBuffer body) {
        long number(int at) {
            return body.getLong(at);
        }

        String text() {
            byte[] bytes = new byte[body.limit() - 4];
            body.get(4, bytes);
            return new String(bytes);
        }
    }

    Tool(Path pool) throws IOException {
        channel = SocketChannel.open(StandardProtocolFamily.UNIX);
        channel.connect(UnixDomainSocketAddress.of(pool + ".sock"));
    }

    void send(byte... bytes) throws IOException {
        ByteBuffer b = ByteBuffer.wrap(bytes);
        while (b.hasRemaining()) {
            channel.write(b);
        }
    }

    Tool hello() throws IOException {
        ByteBuffer b = ByteBuffer.allocate(16).order(ByteOrder.LITTLE_ENDIAN);
        b.put(0, "TOWACOPY".getBytes()).putInt(8, 1);
        send(b.array());
        return this;
    }

    private ByteBuffer read(int bytes) throws IOException {
        ByteBuffer b = ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
        while (b.hasRemaining()) {
            if (channel.read(b) < 0) {
                throw new EOFException();
            }
        }
        return b.flip();
    }

    Message next() throws IOException {
        ByteBuffer head = read(8);
        return new Message(head.getInt(0), read(head.getInt(4)));
    }

    /** Takes pages until another message comes. */
    Message takePages() throws IOException {
        for (;;) {
            Message m = next();
            if (m.kind() != BackupSession.PAGES) {
                return m;
            }
            int n = m.body().limit() / 4100;
            for (int i = 0; i < n; i++) {
                byte[] page = new byte[4096];
                m.body().get(4 * n + 4096 * i, page);
                pages.put(m.body().getInt(4 * i), page);
            }
            sent += n;
        }
    }

    long number(int page, int at) {
        return ByteBuffer.wrap(pages.get(page)).order(ByteOrder.LITTLE_ENDIAN).getLong(at);
    }

    /** Whether the program has hung up, which it may do after some bytes more. */
    boolean isHungUp() {
        try {
            for (;;) {
                read(1);
            }
        } catch (IOException e) {
            return true;
        }
    }

    @Override
    public void close() throws IOException {
        channel.close();
    }
}
