package towabench;

/** The thesis' own figures, of the DaCapo program of the same name: replicas and stores to durable objects a second (Table 7.2). Source: RBP. */
final class Thesis {
    private static final String[][] TABLE_7_2 = {{"avrora", "10.5k", "15.6M"}, {"fop", "20.6k", "0.4M"}, {"h2", "35.8k", "0.9M"}, {"jython", "213k", "1.0M"},
        {"luindex", "4.2k", "3.8M"}, {"lusearch", "187k", "25.7M"}, {"pmd", "165k", "0.1M"}, {"sunflow", "2.2k", "0.0M"}, {"xalan", "257k", "26.5M"}};

    private Thesis() {}

    static String[] of(String program) {
        for (String[] row : TABLE_7_2) {
            if (row[0].equals(program)) {
                return new String[] {row[1], row[2]};
            }
        }
        return new String[] {"-", "-"};
    }
}
