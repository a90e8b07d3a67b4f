//! The commands in the documentation do what they say. `docs/development.md` describes the marks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A block of code: the words after its three backticks, and its text.
struct Block {
    line: usize,
    words: Vec<String>,
    text: String,
}

impl Block {
    fn value(&self, key: &str) -> Option<&str> {
        let mut values = self.words.iter().filter_map(|word| word.split_once('='));
        values.find(|(found, _)| *found == key).map(|v| v.1)
    }
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for (index, line) in markdown.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            if !open {
                blocks.push(Block {
                    line: index + 1,
                    words: info.split_whitespace().map(str::to_owned).collect(),
                    text: String::new(),
                });
            }
            open = !open;
        } else if open {
            let block = blocks.last_mut().unwrap();
            block.text += line;
            block.text.push('\n');
        }
    }
    assert!(!open, "a block has no end");
    blocks
}

fn documents() -> BTreeMap<String, String> {
    let mut paths = vec!["README.md".to_owned(), "examples/README.md".to_owned()];
    for entry in fs::read_dir(Path::new(ROOT).join("docs")).unwrap() {
        paths.push(format!("docs/{}", entry.unwrap().file_name().display()));
    }
    paths.retain(|path| Path::new(path).extension().is_some_and(|end| end == "md"));
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(Path::new(ROOT).join(&path)).unwrap();
            (path, text)
        })
        .collect()
}

/// A folder with what the commands read, and programs that stand in for cargo and kubectl.
struct Place {
    folder: tempfile::TempDir,
    path: String,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(
            &Path::new(ROOT).join("examples"),
            &folder.path().join("examples"),
        );
        let programs = folder.path().join(".programs");
        let plugin = env!("CARGO_BIN_EXE_kubectl-boundary");
        // `cargo run` would compile the plugin anew, without what the tests need.
        let cargo = format!(
            "[ \"$1 $2 $3 $4\" = \"run --bin kubectl-boundary --\" ] || \
             {{ echo \"not run by this test: cargo $*\" >&2; exit 99; }}\nshift 4\nexec '{plugin}' \"$@\"\n"
        );
        let kubectl = format!(
            "[ \"$1\" = boundary ] || {{ echo \"not run by this test: kubectl $*\" >&2; exit 99; }}\n\
             shift\nexec '{plugin}' \"$@\"\n"
        );
        fs::create_dir(&programs).unwrap();
        for (name, script) in [("cargo", cargo), ("kubectl", kubectl)] {
            let program = programs.join(name);
            fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        Self { folder, path }
    }

    /// Runs a script; gives its status, what it printed, and what it printed as errors.
    fn run(&self, script: &str) -> (Option<i32>, String, String) {
        let output = Command::new("/bin/sh")
            .args(["-eu", "-c", script])
            .current_dir(self.folder.path())
            .env("PATH", &self.path)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn every_command_does_what_it_says() {
    let mut run = 0;
    for (document, text) in documents() {
        let place = Place::new();
        // What the block before printed, for the block of text after it.
        let mut printed = None;
        for block in blocks(&text) {
            let at = format!("{document}:{}", block.line);
            let before = printed.take();
            let words: Vec<_> = block.words.iter().map(String::as_str).collect();
            match words[..] {
                ["sh", ..] if words.iter().any(|word| not_run(word)) => {}
                ["sh", ref rest @ ..] => {
                    assert!(
                        rest.iter().all(|word| word.starts_with("status=")),
                        "{at}: an unknown mark: {rest:?}"
                    );
                    let status = block.value("status").unwrap_or("0").parse().unwrap();
                    let (found, output, errors) = place.run(&block.text);
                    assert_eq!(found, Some(status), "{at}: {output}{errors}");
                    printed = Some(output);
                    run += 1;
                }
                ["text"] => {
                    if let Some(printed) = before {
                        assert!(
                            printed == block.text,
                            "{at}: it prints something else:\n{printed}"
                        );
                    }
                }
                ["json"] => {
                    let read = serde_json::from_str::<serde_json::Value>(&block.text);
                    read.unwrap_or_else(|error| panic!("{at}: {error}"));
                }
                ["yaml", ..] => {
                    if let Some(file) = block.value("file") {
                        fs::write(place.folder.path().join(file), &block.text).unwrap();
                    }
                }
                _ => panic!("{at}: a block of an unknown kind: {words:?}"),
            }
        }
    }
    assert!(run >= 10, "only {run} blocks were run");
}

fn not_run(mark: &str) -> bool {
    ["by-ci", "needs-cluster", "by-hand"].contains(&mark)
}

#[test]
fn ci_runs_what_it_is_said_to_run() {
    let ci = fs::read_to_string(Path::new(ROOT).join(".ci/run")).unwrap();
    let lines: Vec<_> = ci.lines().map(str::trim).collect();
    let mut commands = 0;
    for (document, text) in documents() {
        for block in blocks(&text) {
            if block.words.iter().any(|word| word == "by-ci") {
                for command in block.text.lines() {
                    assert!(lines.contains(&command), "{document}: {command}");
                    commands += 1;
                }
            }
        }
    }
    assert!(commands >= 2, "only {commands} commands are marked so");
}

#[test]
fn every_link_leads_somewhere() {
    let headings = |path: &Path| -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().filter(|line| line.starts_with('#'));
        let anchor = |line: &str| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            words.replace(' ', "-")
        };
        lines.map(anchor).collect()
    };
    for (document, text) in documents() {
        let folder = Path::new(ROOT).join(&document).parent().unwrap().to_owned();
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path: PathBuf = folder.join(file);
            assert!(path.exists(), "{document}: {link}");
            assert!(
                anchor.is_empty() || headings(&path).iter().any(|heading| heading == anchor),
                "{document}: {link}"
            );
        }
    }
}
