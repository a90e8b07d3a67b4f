//! What a release is made of: the scripts in `.ci`, and versions that are written in several places.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use control_plane::{Tool, binaries};
use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const PLATFORMS: [&str; 4] = ["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout) + &text(&output.stderr),
    )
}

/// Runs `.ci/release` over programs, all of which are this one, for these platforms.
fn release(folder: &Path, tag: &str, platforms: &[&str]) -> (bool, String) {
    let (programs, tools) = (folder.join("programs"), folder.join("tools"));
    for folder in [&programs, &tools] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).unwrap();
    }
    let helm = binaries::ensure_tool(Tool::Helm).unwrap();
    std::os::unix::fs::symlink(helm, tools.join("helm")).unwrap();
    for platform in platforms {
        let program = programs.join(format!("kubectl-boundary-{platform}"));
        let script = format!(
            "#!/bin/sh\n# {platform}\nexec '{}' \"$@\"\n",
            env!("CARGO_BIN_EXE_kubectl-boundary")
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    run(Command::new(Path::new(ROOT).join(".ci/release"))
        .arg(tag)
        .arg(&programs)
        .arg(folder.join("out"))
        .env("PATH", path)
        .env("SOURCE_DATE_EPOCH", "1700000000"))
}

#[test]
fn a_release_has_archives_with_completions_and_man_pages_and_a_manifest_with_their_checksums() {
    let version = env!("CARGO_PKG_VERSION");
    let tag = format!("v{version}");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("boundary-operator.sbom.json"), "{}").unwrap();
    let (fine, said) = release(folder.path(), &tag, &PLATFORMS);
    assert!(fine, "{said}");

    let sums = fs::read_to_string(out.join("checksums.txt")).unwrap();
    let (fine, said) = run(Command::new("sha256sum")
        .args(["--check", "--strict", "checksums.txt"])
        .current_dir(&out));
    assert!(fine, "{said}");
    let mut files: Vec<_> = sums.lines().map(|line| line[66..].to_owned()).collect();
    files.sort();
    let mut wanted: Vec<_> = PLATFORMS
        .map(|p| format!("kubectl-boundary-{p}.tar.gz"))
        .into();
    wanted.extend(["boundary.yaml", "boundary-operator.sbom.json"].map(ToOwned::to_owned));
    for chart in ["boundary-operator", "boundary-member"] {
        wanted.push(format!("{chart}-{version}.tgz"));
    }
    wanted.sort();
    assert_eq!(files, wanted);

    let krew = fs::read_to_string(out.join("boundary.yaml")).unwrap();
    let krew: Value = serde_saphyr::from_str(&krew).unwrap();
    assert_eq!(krew["spec"]["version"], tag);
    let platforms = krew["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), PLATFORMS.len());
    for platform in platforms {
        let uri = platform["uri"].as_str().unwrap();
        let name = uri.rsplit('/').next().unwrap();
        let line = format!("{}  {name}", platform["sha256"].as_str().unwrap());
        assert!(sums.lines().any(|known| known == line), "{line}");
    }

    let archive = out.join("kubectl-boundary-linux-arm64.tar.gz");
    let (_, listed) = run(Command::new("tar").arg("-tf").arg(&archive));
    for file in [
        "./kubectl-boundary",
        "./LICENSE",
        "./completions/kubectl-boundary.bash",
        "./completions/kubectl-boundary.zsh",
        "./completions/kubectl-boundary.fish",
        "./man/kubectl-boundary.1",
        "./man/kubectl-boundary-register.1",
    ] {
        assert!(listed.lines().any(|line| line == file), "{file}: {listed}");
    }
    let (_, program) = run(Command::new("tar")
        .args(["-xOf"])
        .arg(&archive)
        .arg("./kubectl-boundary"));
    assert!(program.contains("# linux-arm64"), "{program}");

    // The same again is the same.
    let before = fs::read(&archive).unwrap();
    let (fine, said) = release(folder.path(), &tag, &PLATFORMS);
    assert!(fine, "{said}");
    assert_eq!(fs::read(&archive).unwrap(), before);
}

#[test]
fn a_wrong_tag_and_a_missing_platform_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let (fine, said) = release(folder.path(), "v9.9.9", &PLATFORMS);
    assert!(
        !fine && said.contains("the version in Cargo.toml"),
        "{said}"
    );
    let tag = format!("v{}", env!("CARGO_PKG_VERSION"));
    let (fine, said) = release(folder.path(), &tag, &PLATFORMS[..3]);
    assert!(!fine && said.contains("has no archive"), "{said}");
    assert!(said.contains("darwin-arm64"), "{said}");
}

/// What follows `start` up to a space, in a file.
fn after<'t>(text: &'t str, start: &str) -> Vec<&'t str> {
    let rests = text.split(start).skip(1);
    rests
        .map(|rest| rest.split([' ', '\n', '-', '"']).next().unwrap())
        .collect()
}

#[test]
fn the_image_and_the_release_are_built_with_the_same_tools() {
    let (image, workflow) = (read("Dockerfile"), read(".github/workflows/release.yaml"));
    for tool in ["cargo-zigbuild==", "ziglang=="] {
        let both = [after(&image, tool), after(&workflow, tool)];
        assert_eq!(both[0].len(), 1, "{tool}");
        assert_eq!(both[0], both[1], "{tool}");
    }
    let toolchain = read("rust-toolchain.toml");
    assert_eq!(
        after(&image, "FROM --platform=$BUILDPLATFORM rust:"),
        after(&toolchain, "channel = \"")
    );
    // As the chart runs it.
    let values: Value =
        serde_saphyr::from_str(&read("charts/boundary-operator/values.yaml")).unwrap();
    let user = values["podSecurityContext"]["runAsUser"].as_u64().unwrap();
    assert_eq!(after(&image, "\nUSER "), [format!("{user}:{user}")]);
}

/// The image is built from these files alone.
#[test]
fn what_the_image_is_built_from_is_complete() {
    let ignore = read(".dockerignore");
    let folder = tempfile::tempdir().unwrap();
    for path in ignore.lines().filter_map(|line| line.strip_prefix('!')) {
        let to = folder.path().join(path);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let (fine, said) = run(Command::new("cp")
            .arg("-r")
            .arg(Path::new(ROOT).join(path))
            .arg(&to));
        assert!(fine, "{said}");
    }
    // Cargo looks for every target that it is told of.
    let (fine, said) = run(Command::new("cargo")
        .args(["metadata", "--locked", "--offline", "--format-version=1"])
        .current_dir(&folder));
    assert!(fine, "{said}");
    let mut included = 0;
    for file in walk(&folder.path().join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        let paths = text.split("include_str!(\"").skip(1);
        for path in paths.map(|rest| rest.split('"').next().unwrap()) {
            // The others are in tests and at the end of a macro.
            if path.starts_with("..") {
                let path = file.parent().unwrap().join(path);
                assert!(path.exists(), "{}", path.display());
                included += 1;
            }
        }
    }
    assert!(included > 0);
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(walk(&path));
        } else {
            files.push(path);
        }
    }
    files
}
