//! The C interface: the headers declare exactly the functions that `crates/capi` exports, with as many parameters.

use std::collections::BTreeMap;

use crate::{Findings, Source, must_be_empty, sources};

/// Function name and number of parameters.
type Functions = BTreeMap<String, usize>;

/// The headers in C.
const HEADERS: [&str; 3] = ["include/towa.h", "include/towa_tx.h", "include/towa_snap.h"];

/// `#[unsafe(no_mangle)]` functions in Rust text.
fn exported(text: &str) -> Functions {
    let mut functions = Functions::new();
    for part in text.split("#[unsafe(no_mangle)]").skip(1) {
        let Some((before, rest)) = part.split_once("fn ") else { continue };
        if before.contains('}') || before.contains("static ") {
            continue;
        }
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        functions.insert(name.clone(), parameters(&rest[name.len()..]));
    }
    functions
}

/// Functions declared, not defined, in a C header.
fn declared(header: &str) -> Functions {
    let mut functions = Functions::new();
    for statement in statements(&for_c_only(&without_comments(header))) {
        let Some((head, rest)) = statement.split_once('(') else { continue };
        let name = head.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("");
        if name.starts_with("towa_") && !head.contains("typedef") && !head.contains("static") {
            functions.insert(name.to_owned(), parameters(&format!("({rest}")));
        }
    }
    functions
}

/// How many parameters stand in the parentheses that `text` opens with.
fn parameters(text: &str) -> usize {
    let (mut depth, mut count, mut current) = (0, 0, String::new());
    for c in text.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        // A parameter ends with a comma of the outermost parentheses, or with these; a trailing comma ends none.
        if depth == 0 || (depth == 1 && c == ',') {
            count += usize::from(!["", "void"].contains(&current.trim_start_matches('(').trim()));
            current.clear();
        } else {
            current.push(c);
        }
        if depth == 0 {
            break;
        }
    }
    count
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        out.push_str(&rest[..at]);
        let (end, skip) = if rest[at..].starts_with("/*") { ("*/", 2) } else { ("\n", 0) };
        rest = rest[at..].find(end).map_or("", |n| &rest[at + n + skip..]);
    }
    out + rest
}

/// What a C compiler sees: no preprocessor lines, nothing between `#ifdef __cplusplus` and its end.
fn for_c_only(text: &str) -> String {
    let mut out = String::new();
    let mut hidden: Vec<bool> = Vec::new();
    let mut continued = false;
    for line in text.lines() {
        let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
        let is_directive = continued || directive.is_some();
        continued = is_directive && line.trim_end().ends_with('\\');
        match directive {
            Some(d) if d.starts_with("if") => {
                hidden.push(d.starts_with("ifdef __cplusplus") || d.starts_with("if defined(__cplusplus)"))
            }
            Some(d) if d.starts_with("else") => {
                if let Some(last) = hidden.last_mut() {
                    *last = false;
                }
            }
            Some(d) if d.starts_with("endif") => drop(hidden.pop()),
            _ => {}
        }
        if !is_directive && !hidden.contains(&true) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Declarations at the top level that end with a semicolon; bodies in braces are passed over.
fn statements(text: &str) -> Vec<String> {
    let (mut found, mut current, mut depth) = (Vec::new(), String::new(), 0usize);
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                // The end of an inline function; a struct's or enum's brace is followed by its semicolon, with no '(' before it.
                current.clear();
            }
            ';' if depth == 0 => found.push(std::mem::take(&mut current)),
            _ if depth == 0 => current.push(c),
            _ => {}
        }
    }
    found
}

fn differences(header: &Functions, exports: &Functions) -> Findings {
    let mut found = Findings::new();
    for (name, count) in exports {
        match header.get(name) {
            None => found.push(format!("include: {name} is exported by crates/capi but declared in no header")),
            Some(n) if n != count => found.push(format!("include: {name} has {n} parameter(s), {count} in crates/capi")),
            Some(_) => {}
        }
    }
    let missing = header.keys().filter(|name| !exports.contains_key(*name));
    found.extend(missing.map(|name| format!("include: {name} is declared, but crates/capi does not export it")));
    found
}

#[test]
fn header_matches_exports() {
    let files = sources();
    let headers: Functions = files.iter().filter(|f| HEADERS.contains(&f.path.as_str())).flat_map(|f| declared(&f.text)).collect();
    assert!(!headers.is_empty(), "no function found in {HEADERS:?}: this test looks at nothing");
    let is_capi = |f: &&Source| f.path.starts_with("crates/capi/src/") && f.path.ends_with(".rs");
    let exports: Functions = files.iter().filter(is_capi).flat_map(|f| exported(&f.text)).collect();
    assert!(!exports.is_empty(), "no #[unsafe(no_mangle)] function found in crates/capi/src: this test looks at nothing");
    must_be_empty(differences(&headers, &exports));
}

#[test]
fn planted_offences_are_found() {
    let rust = "/// x\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn towa_open(\n    path: *const c_char,\n    f: Option<extern fn(i32, u8)>,\n) -> i32 {}\n\
                #[unsafe(no_mangle)]\npub extern \"C\" fn towa_version() -> u32 { 1 }";
    let exports = exported(rust);
    assert_eq!(exports, Functions::from([("towa_open".into(), 2), ("towa_version".into(), 0)]));
    let header = "#ifdef __cplusplus\nextern \"C\" {\n#endif\n/* int towa_no(void); */\ntypedef struct towa_pool { int a; } towa_pool;\n\
                  typedef int (*towa_callback)(int);\n#define TOWA_X(a) \\\n  towa_y(a);\n\
                  static inline int towa_fast(int a) { return towa_open(a, 0); }\n\
                  int towa_open(const char *path, void (*f)(int a, char b));\nuint32_t towa_version(void);\n#ifdef __cplusplus\n}\n#endif\n";
    let declared_here = declared(header);
    assert_eq!(declared_here, exports);
    assert_eq!(differences(&declared("int towa_open(int a);"), &exports).len(), 2);
    assert_eq!(differences(&declared(&format!("{header}int towa_gone(void);")), &exports).len(), 1);
}
