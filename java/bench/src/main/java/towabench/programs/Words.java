package towabench.programs;

import java.util.Random;

/** Text to work on: words of a made-up language, the frequent ones short, the same for the same seed. */
public final class Words {
    private static final String[] SYLLABLES = {"ta", "ru", "mi", "ko", "na", "sel", "dor", "vin", "pa", "lu", "gre", "hos", "ben", "qui", "zar"};
    private final Random random;
    private final String[] words;

    public Words(long seed, int count) {
        random = new Random(seed);
        words = new String[count];
        for (int i = 0; i < count; i++) {
            StringBuilder word = new StringBuilder();
            for (int n = i + 1; n > 0; n /= SYLLABLES.length) {
                word.append(SYLLABLES[n % SYLLABLES.length]);
            }
            words[i] = word.toString();
        }
    }

    /** Zipf-like: the n-th word comes about 1/n as often as the first. */
    public String next() {
        int rank = (int) Math.pow(words.length, random.nextDouble()) - 1;
        return words[Math.min(rank, words.length - 1)];
    }

    public String text(int count) {
        StringBuilder text = new StringBuilder(count * 7);
        for (int i = 0; i < count; i++) {
            text.append(i == 0 ? "" : i % 12 == 0 ? ". " : " ").append(next());
        }
        return text.toString();
    }

    public int below(int n) {
        return random.nextInt(n);
    }
}
