package towabench.programs.big;

import java.io.IOException;
import java.nio.file.Path;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.apache.lucene.document.IntPoint;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.queryparser.classic.ParseException;
import org.apache.lucene.queryparser.classic.QueryParser;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.TopDocs;
import org.apache.lucene.store.ByteBuffersDirectory;
import org.apache.lucene.store.Directory;
import towabench.programs.Program;
import towabench.programs.Words;

/** Lucene answers queries of several kinds from an index in memory; the analyzer, the parser and the searcher are made anew in every iteration. */
public final class Lusearch implements Program {
    private final Directory directory = new ByteBuffersDirectory();
    private int queries;

    @Override
    public void prepare(Path scratch, int size) throws IOException {
        Luindex.index(directory, Luindex.texts(2500));
        queries = size * 160;
    }

    @Override
    public long run() throws IOException, ParseException {
        Words words = new Words(5, 20000);
        long sum = 0;
        try (DirectoryReader reader = DirectoryReader.open(directory)) {
            IndexSearcher searcher = new IndexSearcher(reader);
            searcher.setQueryCache(null);
            QueryParser parser = new QueryParser("text", new EnglishAnalyzer());
            for (int i = 0; i < queries; i++) {
                Query query = query(parser, words, i);
                TopDocs found = searcher.search(query, 20);
                sum = sum * 31 + found.totalHits.value();
                for (ScoreDoc hit : found.scoreDocs) {
                    sum = sum * 31 + hit.doc * 7L + Float.floatToIntBits(hit.score);
                    sum += searcher.storedFields().document(hit.doc).get("head").hashCode();
                }
            }
        }
        return sum;
    }

    private static Query query(QueryParser parser, Words words, int i) throws ParseException {
        String a = words.next();
        String b = words.next();
        switch (i % 5) {
            case 0:
                return parser.parse(a + " " + b);
            case 1:
                return parser.parse("+" + a + " -" + b);
            case 2:
                return parser.parse("\"" + a + " " + b + "\"~4");
            case 3:
                return parser.parse(a.substring(0, 2) + "* AND " + b);
            default:
                int from = words.below(1500);
                return new BooleanQuery.Builder().add(parser.parse(a + " OR " + b), BooleanClause.Occur.MUST)
                    .add(IntPoint.newRangeQuery("length", from, from + 400), BooleanClause.Occur.FILTER).build();
        }
    }
}
