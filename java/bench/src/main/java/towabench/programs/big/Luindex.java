package towabench.programs.big;

import java.io.IOException;
import java.nio.file.Path;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.IntPoint;
import org.apache.lucene.document.NumericDocValuesField;
import org.apache.lucene.document.StoredField;
import org.apache.lucene.document.StringField;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.MultiTerms;
import org.apache.lucene.index.SerialMergeScheduler;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.store.ByteBuffersDirectory;
import org.apache.lucene.store.Directory;
import towabench.programs.Program;
import towabench.programs.Words;

/** Lucene makes an index of generated texts, in memory. */
public final class Luindex implements Program {
    private String[] texts;

    @Override
    public void prepare(Path scratch, int size) {
        texts = texts(size * 180);
    }

    static String[] texts(int count) {
        Words words = new Words(11, 20000);
        String[] texts = new String[count];
        for (int i = 0; i < count; i++) {
            texts[i] = words.text(120 + words.below(200));
        }
        return texts;
    }

    static void index(Directory directory, String[] texts) throws IOException {
        IndexWriterConfig how = new IndexWriterConfig(new EnglishAnalyzer()).setMergeScheduler(new SerialMergeScheduler()).setMaxBufferedDocs(300)
            .setRAMBufferSizeMB(IndexWriterConfig.DISABLE_AUTO_FLUSH).setUseCompoundFile(false);
        try (IndexWriter writer = new IndexWriter(directory, how)) {
            for (int i = 0; i < texts.length; i++) {
                Document d = new Document();
                d.add(new StringField("id", Integer.toString(i), Field.Store.YES));
                d.add(new TextField("text", texts[i], Field.Store.NO));
                d.add(new IntPoint("length", texts[i].length()));
                d.add(new NumericDocValuesField("size", texts[i].length()));
                d.add(new StoredField("head", texts[i].substring(0, 50)));
                writer.addDocument(d);
            }
            writer.forceMerge(1);
        }
    }

    @Override
    public long run() throws IOException {
        try (Directory directory = new ByteBuffersDirectory()) {
            index(directory, texts);
            try (DirectoryReader reader = DirectoryReader.open(directory)) {
                long sum = reader.numDocs();
                Terms terms = MultiTerms.getTerms(reader, "text");
                TermsEnum each = terms.iterator();
                while (each.next() != null) {
                    sum = sum * 31 + each.term().utf8ToString().hashCode() * 7L + each.docFreq() + each.totalTermFreq();
                }
                return sum;
            }
        }
    }
}
