package towabench.micro;

/** The smallest program; with an argument, one that opens a pool and says how long that took. */
public final class Hello {
    private Hello() {}

    public static void main(String[] args) {
        if (args.length > 0) {
            long began = System.nanoTime();
            io.towa.Towa.open(java.nio.file.Path.of(args[0]));
            System.out.println("@opened " + (System.nanoTime() - began) / 1e6);
        }
        System.out.println("hello");
    }
}
