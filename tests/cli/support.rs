//! Runs the plugin in a folder of files.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A policy of the boundary `web` for trusted registries.
pub(crate) const TRUSTED: &str = "\
apiVersion: boundarypolicy.dev/v1alpha1
kind: BoundaryPolicy
metadata: {name: trusted}
spec:
  boundary: web
  rules:
    allowedRegistries: {registries: [ghcr.io/acme]}
";

/// What the policy says of `image`.
pub(crate) fn refusal(image: &str) -> String {
    format!(
        "Policy 'trusted' (AllowedRegistries) denied image {image}: it is not under ghcr.io/acme."
    )
}

/// A Pod as a file.
pub(crate) fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - name: c\n    image: {image}\n"
    )
}

pub(crate) struct Files(TempDir);

pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Files {
    pub(crate) fn new<const N: usize>(files: [(&str, &str); N]) -> Self {
        let this = Self(TempDir::new().unwrap());
        for (name, text) in files {
            this.write(name, text.as_bytes());
        }
        this
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub(crate) fn run(&self, arguments: &str) -> Run {
        self.run_with(arguments, "")
    }

    pub(crate) fn run_with(&self, arguments: &str, stdin: &str) -> Run {
        run_in(self.path(), arguments, stdin)
    }

    /// What `test -o json` finds: verdict and messages of each resource.
    pub(crate) fn verdicts(&self, arguments: &str) -> Vec<(String, Vec<String>)> {
        let run = self.run(&format!("test {arguments} -o json"));
        let list: Vec<serde_json::Value> = serde_json::from_str(&run.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", run.stdout, run.stderr));
        let messages = |v: &serde_json::Value| serde_json::from_value(v["messages"].clone());
        (list.iter())
            .map(|v| {
                (
                    v["verdict"].as_str().unwrap().to_owned(),
                    messages(v).unwrap(),
                )
            })
            .collect()
    }
}

pub(crate) fn run_in(folder: &Path, arguments: &str, stdin: &str) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-boundary"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A run that doesn't read its input may be over before all of it is written.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    Run {
        status: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
