//! Reading files, folders and standard input into documents whose every field has a line.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The deepest folder below a given one that is read.
const MAX_FOLDERS: usize = 32;

/// Something wrong with what was given, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file, as it was given or found; empty: no file in particular.
    pub file: String,
    /// The document in the file, counted from 1.
    pub document: Option<usize>,
    /// The line in the file, counted from 1.
    pub line: Option<u64>,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}: ", printable(&self.file))?;
        }
        match (self.document, self.line) {
            (Some(document), Some(line)) => write!(f, "document {document}, line {line}: ")?,
            (Some(document), None) => write!(f, "document {document}: ")?,
            (None, Some(line)) => write!(f, "line {line}: ")?,
            (None, None) => {}
        }
        f.write_str(&printable(&self.message))
    }
}

/// Everything that is wrong with what was given.
#[derive(Debug, Default)]
pub(super) struct Diagnostics(pub(super) Vec<Diagnostic>);

impl Diagnostics {
    /// Something is wrong with a file.
    pub(super) fn file(&mut self, file: &str, message: impl Into<String>) {
        self.0.push(Diagnostic {
            file: file.to_owned(),
            document: None,
            line: None,
            message: message.into(),
        });
    }

    /// Something is wrong with the field `path` of a document; an empty path is the document.
    pub(super) fn field(&mut self, document: &Document, path: &str, message: &str) {
        let message = match path {
            "" => message.to_owned(),
            path => format!("{path}: {message}"),
        };
        self.0.push(Diagnostic {
            file: document.file.clone(),
            document: Some(document.number),
            line: Some(document.line_of(path)),
            message,
        });
    }
}

/// `text` with control characters written out, so that a file can't command a terminal. So are
/// those that turn the direction of text or break a line: they make it look like another.
pub(super) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let deceives = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || deceives {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// One object of a file.
#[derive(Clone, Debug)]
pub(super) struct Document {
    /// The file, as it was given or found.
    pub(super) file: String,
    /// The document in the file, counted from 1. Items of a list share that of the list.
    pub(super) number: usize,
    /// The object.
    pub(super) value: Value,
    root: Node,
    first_line: u64,
}

impl Document {
    /// The text of a field that must be text if it is there.
    pub(super) fn text(&self, pointer: &str) -> &str {
        self.value
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The line of the field at `path`, or of the nearest field around it.
    pub(super) fn line_of(&self, path: &str) -> u64 {
        self.first_line + self.root.line_of(path)
    }

    /// The object in the field `path` (a top-level one, or an item of one) as a document.
    fn child(&self, node: &Node) -> Self {
        Self {
            file: self.file.clone(),
            number: self.number,
            value: node.to_json(),
            root: node.clone(),
            first_line: self.first_line,
        }
    }

    /// An inline object: the value at `path`, with the lines that it has here.
    pub(super) fn at(&self, path: &str) -> Option<Self> {
        self.root.at(path).map(|node| self.child(node))
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
struct Node {
    line: u64,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<(String, u64, Node)>),
}

impl Node {
    fn to_json(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Content::Map(fields) => Value::Object(
                (fields.iter())
                    .map(|(key, _, node)| (key.clone(), node.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    /// The child that `path` names first, with its line and the rest of the path.
    fn step<'n, 'p>(&'n self, path: &'p str) -> Option<(u64, &'n Self, &'p str)> {
        match &self.content {
            Content::Scalar(_) => None,
            Content::List(items) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                let item = items.get(index.parse::<usize>().ok()?)?;
                Some((item.line, item, rest.strip_prefix('.').unwrap_or(rest)))
            }
            // Keys may hold dots, so the longest that fits is the one that is meant. Keys that
            // users choose are written in brackets.
            Content::Map(fields) => (fields.iter())
                .filter_map(|(key, line, node)| {
                    let bracketed = || path.strip_prefix('[')?.strip_prefix(key)?.strip_prefix(']');
                    let rest = path.strip_prefix(key).or_else(bracketed)?;
                    let fits = rest.is_empty() || rest.starts_with(['.', '[']);
                    let rest = rest.strip_prefix('.').unwrap_or(rest);
                    (fits && !key.is_empty()).then_some((*line, node, rest))
                })
                .min_by_key(|(_, _, rest)| rest.len()),
        }
    }

    fn line_of(&self, path: &str) -> u64 {
        let (mut node, mut line, mut path) = (self, self.line, path);
        while let Some((child_line, child, rest)) = node.step(path) {
            (node, line, path) = (child, child_line, rest);
        }
        line
    }

    fn at(&self, path: &str) -> Option<&Self> {
        let (mut node, mut path) = (self, path);
        while !path.is_empty() {
            (_, node, path) = node.step(path)?;
        }
        Some(node)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Content>::deserialize(deserializer)?;
        Ok(Self {
            line: spanned.referenced.line(),
            content: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Content, E> {
        let number = Number::from_f64(value)
            .ok_or_else(|| E::custom("a number must be finite, quote it if it is text"))?;
        Ok(Content::Scalar(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Scalar(Value::String(value.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Content::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let node = map.next_value()?;
            fields.push((key.value, key.referenced.line(), node));
        }
        Ok(Content::Map(fields))
    }
}

/// Where files and standard input are read from.
pub(super) struct Reader<'a> {
    stdin: Option<&'a mut dyn Read>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(stdin: &'a mut dyn Read) -> Self {
        Self { stdin: Some(stdin) }
    }

    /// Every object under `paths`, lists expanded, in the order of the paths and of the names in
    /// folders.
    pub(super) fn documents(
        &mut self,
        paths: &[PathBuf],
        problems: &mut Diagnostics,
    ) -> Vec<Document> {
        let mut documents = Vec::new();
        for path in paths {
            if path.as_os_str() == "-" {
                match self.stdin.take() {
                    Some(stdin) => read("standard input", stdin, &mut documents, problems),
                    None => problems.file("standard input", "can be read only once"),
                }
                continue;
            }
            let mut files = Vec::new();
            if path.is_dir() {
                list(path, MAX_FOLDERS, &mut files, problems);
                if files.is_empty() {
                    let message = "the folder holds no *.yaml, *.yml or *.json file";
                    problems.file(&path.to_string_lossy(), message);
                }
                files.sort();
            } else {
                files.push(path.clone());
            }
            for path in files {
                let file = path.to_string_lossy();
                match File::open(&path) {
                    Ok(mut open) => read(&file, &mut open, &mut documents, problems),
                    Err(error) => problems.file(&file, format!("can't be read: {error}")),
                }
            }
        }
        documents
    }
}

/// The files to read under `folder`. Hidden ones are not, nor folders behind links, which can loop.
fn list(folder: &Path, depth: usize, files: &mut Vec<PathBuf>, problems: &mut Diagnostics) {
    let unreadable = |problems: &mut Diagnostics, error: std::io::Error| {
        problems.file(&folder.to_string_lossy(), format!("can't be read: {error}"));
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return unreadable(problems, error),
    };
    for entry in entries {
        let (path, kind) = match entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))) {
            Ok(entry) => entry,
            Err(error) => return unreadable(problems, error),
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if kind.is_dir() {
            if depth == 0 {
                problems.file(&path.to_string_lossy(), "the folders are nested too deep");
            } else {
                list(&path, depth - 1, files, problems);
            }
        } else if matches!(&*extension, "yaml" | "yml" | "json") && !path.is_dir() {
            files.push(path);
        }
    }
}

fn read(
    file: &str,
    source: &mut dyn Read,
    documents: &mut Vec<Document>,
    problems: &mut Diagnostics,
) {
    let mut bytes = Vec::new();
    if let Err(error) = source.take(MAX_BYTES + 1).read_to_end(&mut bytes) {
        return problems.file(file, format!("can't be read: {error}"));
    }
    if bytes.len() as u64 > MAX_BYTES {
        let limit = MAX_BYTES >> 20;
        return problems.file(file, format!("is larger than {limit} MiB"));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse(file, text, documents, problems),
        Err(error) => {
            let newlines = bytes[..error.valid_up_to()].iter().filter(|b| **b == b'\n');
            problems.0.push(Diagnostic {
                file: file.to_owned(),
                document: None,
                line: Some(newlines.count() as u64 + 1),
                message: "is not UTF-8 text".to_owned(),
            });
        }
    }
}

/// The documents of `text`, each parsed alone, so that one that is broken doesn't hide the others.
fn parse(file: &str, text: &str, documents: &mut Vec<Document>, problems: &mut Diagnostics) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut number = 0;
    for (first_line, part) in split(text) {
        let blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        if part.trim_start_matches("---").lines().all(blank) {
            continue;
        }
        number += 1;
        let options = serde_saphyr::options! { with_snippet: false };
        match serde_saphyr::from_str_with_options::<Node>(part, options) {
            Ok(root) => {
                let value = root.to_json();
                let document = Document {
                    file: file.to_owned(),
                    number,
                    value,
                    root,
                    first_line,
                };
                expand(document, documents, problems);
            }
            Err(error) => {
                let line = error.location().map_or(0, |location| location.line());
                let message = error.to_string();
                // The location is said in front, in lines of the file.
                let message = match message.rfind(" at line ") {
                    Some(end) => message[..end].to_owned(),
                    None => message,
                };
                let message = in_our_words(message);
                problems.0.push(Diagnostic {
                    file: file.to_owned(),
                    document: Some(number),
                    line: Some(first_line + line.max(1)),
                    message,
                });
            }
        }
    }
}

/// What the parser says, without what only its callers understand.
fn in_our_words(message: String) -> String {
    if let Some((twice, _)) = message.split_once(", set DuplicateKeyPolicy") {
        return twice.to_owned();
    }
    if message.starts_with("budget breached: Depth") {
        return "is nested too deep".to_owned();
    }
    if message.starts_with("budget breached") {
        return "holds too much, or aliases that stand for too much".to_owned();
    }
    message
}

/// The documents of `text`, each with the number of lines before it. In YAML a line that starts
/// with `---` separates them wherever it stands, in a block or a quoted text too.
fn split(text: &str) -> Vec<(u64, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut start_line, mut offset) = (0, 0, 0);
    for (number, line) in (0..).zip(text.split_inclusive('\n')) {
        let marker = line.strip_prefix("---");
        if marker.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n'])) {
            parts.push((start_line, &text[start..offset]));
            (start, start_line) = (offset, number);
        }
        offset += line.len();
    }
    parts.push((start_line, &text[start..]));
    parts
}

/// Adds `document`, or the items of it where it is a list, after a look at its head.
pub(super) fn expand(
    document: Document,
    documents: &mut Vec<Document>,
    problems: &mut Diagnostics,
) {
    if !document.value.is_object() {
        return problems.field(&document, "", "is not an object with apiVersion and kind");
    }
    let api_version = document.text("/apiVersion");
    let kind = document.text("/kind");
    if let (Content::Map(fields), true) = (
        &document.root.content,
        kind.ends_with("List") && document.value.get("items").is_some(),
    ) {
        for (key, _, node) in fields {
            match (key.as_str(), &node.content) {
                ("items", Content::List(items)) => {
                    for item in items {
                        let mut item = document.child(item);
                        inherit(&mut item, api_version, kind);
                        expand(item, documents, problems);
                    }
                }
                ("items", _) => problems.field(&document, "items", "must be a list"),
                _ => {}
            }
        }
        return;
    }
    let before = problems.0.len();
    for field in ["apiVersion", "kind"] {
        match document.value.get(field) {
            Some(Value::String(text)) if !text.is_empty() => {}
            None => problems.field(&document, "", &format!("has no {field}")),
            Some(_) => problems.field(&document, field, "must be text that is not empty"),
        }
    }
    for (pointer, path) in [
        ("/metadata/name", "metadata.name"),
        ("/metadata/namespace", "metadata.namespace"),
    ] {
        if !matches!(
            document.value.pointer(pointer),
            None | Some(Value::String(_) | Value::Null)
        ) {
            problems.field(&document, path, "must be text");
        }
    }
    if problems.0.len() == before {
        documents.push(document);
    }
}

/// Gives an item of a typed list (`PodList`) the kind that the list says.
fn inherit(item: &mut Document, api_version: &str, list_kind: &str) {
    let kind = list_kind.strip_suffix("List").unwrap_or_default();
    if kind.is_empty() {
        return;
    }
    if let Value::Object(fields) = &mut item.value {
        for (field, value) in [("apiVersion", api_version), ("kind", kind)] {
            fields
                .entry(field)
                .or_insert_with(|| Value::String(value.to_owned()));
        }
    }
}
