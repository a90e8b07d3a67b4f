//! The plan picker of the examples, in a real Chromium, against the real API.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::{Hub, large};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/plan-picker");
const DRIVER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/compute_plans/picker.mjs"
);

/// Where the screenshots are.
const SHOTS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/plan-picker");

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places.find(|place| place.is_file())
}

/// A Chromium, and the library that drives it.
fn browser() -> Result<(PathBuf, PathBuf), &'static str> {
    found("node").ok_or("there is no node")?;
    let chromium = ["chromium", "chromium-browser", "google-chrome"];
    let chromium = chromium.into_iter().find_map(found);
    let chromium = chromium.ok_or("there is no Chromium")?;
    let library = Path::new(SHOTS).join("node_modules/playwright-core/index.js");
    if !library.is_file() {
        std::fs::create_dir_all(SHOTS).unwrap();
        let installed = Command::new("npm")
            .args([
                "install",
                "--no-save",
                "--prefix",
                SHOTS,
                "playwright-core@1",
            ])
            .stdout(Stdio::null())
            .status();
        if !installed.is_ok_and(|status| status.success()) {
            return Err("playwright-core can't be installed");
        }
    }
    Ok((chromium, library))
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_plans_a_refusal_and_a_retry_are_shown_in_a_browser() {
    let (chromium, library) = match browser() {
        Ok(found) => found,
        Err(reason) => {
            eprintln!("SKIPPED: the plan picker is not driven, since {reason}");
            return;
        }
    };
    let mut hub = Hub::start().await;
    let certificate = hub.rotate("one");
    let replica = hub.replica(&certificate, "log");
    replica.refuses(&hub.portal).await;
    std::fs::write(hub.path("token"), &hub.portal).unwrap();
    let server = Command::new("node")
        .arg(format!("{FOLDER}/server.mjs"))
        .env(
            "API",
            format!("https://localhost:{}", replica.caller.address.port()),
        )
        .env("TOKEN_FILE", hub.path("token"))
        .env("NODE_EXTRA_CA_CERTS", hub.path("tls.crt"))
        .env("PORT", "0")
        .stdout(Stdio::piped())
        .spawn();
    let mut server = Process(server.unwrap());
    let mut address = String::new();
    BufReader::new(server.0.stdout.take().unwrap())
        .read_line(&mut address)
        .unwrap();
    let driver = Command::new("node")
        .arg(DRIVER)
        .args([&library, &chromium])
        .arg(format!("{}/?boundary=web&type=valkey", address.trim()))
        .arg(SHOTS)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut driver = Process(driver.unwrap());
    let mut said = BufReader::new(driver.0.stdout.take().unwrap()).lines();
    let mut next = move || -> Value {
        let line = said.next().expect("the driver says something").unwrap();
        serde_json::from_str(&line).unwrap()
    };

    let why = "Not available: a boundary policy disallows it (modest).";
    assert_eq!(
        next(),
        json!({
            "plans": [
                {"plan": "small", "disabled": false, "why": null},
                {"plan": "medium", "disabled": true, "why": why},
                {"plan": "large", "disabled": true, "why": why},
            ],
            "status": "The plan small may be used.",
        })
    );
    let message = "Compute plan 'large' is not allowed in this boundary: a boundary policy \
                   disallows it. Allowed plans: small.";
    assert_eq!(next(), json!({"alert": message, "status": ""}));

    hub.world.hub.kill_api_server().unwrap();
    control_plane::eventually("it is stale", Duration::from_secs(20), async || {
        let reply = replica.ask(&hub.portal, &large()).await;
        (reply.status == 503).then_some(())
    })
    .await;
    driver.0.stdin.take().unwrap().write_all(b"gone\n").unwrap();
    let shown = next();
    let alert = shown["alert"].as_str().unwrap();
    assert!(
        alert.starts_with("The policies are not known now. Trying again in "),
        "{alert}"
    );
    assert_eq!(shown["plans"], 0);
    hub.world.hub.start_api_server().unwrap();
    assert_eq!(next(), json!({"alert": "", "plans": 3, "errors": []}));
    println!("screenshots are in {SHOTS}");
}
