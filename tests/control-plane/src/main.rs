//! Builds control planes, and runs one to try things out on.

use clap::{Parser, Subcommand};
use control_plane::{Binary, ControlPlane, Error, Tool, Version, binaries};
use tokio::signal::unix::{SignalKind, signal};

/// Real Kubernetes control planes of several versions.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Builds the binaries that are not in the cache yet.
    Build {
        /// The versions, as 1.34; all of them, and helm and kubectl, when none is given.
        versions: Vec<Version>,
    },
    /// Runs a control plane until Ctrl-C, and writes the path of its kubeconfig.
    Up {
        /// The version, as 1.34.
        #[arg(long, default_value = "1.34")]
        version: Version,
        /// Runs a kube-controller-manager too.
        #[arg(long)]
        controller_manager: bool,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    let result = match Arguments::parse().command {
        Command::Build { versions } => build(versions),
        Command::Up {
            version,
            controller_manager,
        } => up(version, controller_manager).await,
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("control-plane: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the paths are the output")]
fn build(mut versions: Vec<Version>) -> Result<(), Error> {
    let all = versions.is_empty();
    if all {
        versions.extend(Version::ALL);
    }
    let mut done = Vec::new();
    for version in versions {
        for binary in Binary::ALL {
            let path = binaries::ensure(binary, version)?;
            if !done.contains(&path) {
                println!("{}", path.display());
                done.push(path);
            }
        }
    }
    for tool in Tool::ALL.into_iter().filter(|_| all) {
        println!("{}", binaries::ensure_tool(tool)?.display());
    }
    Ok(())
}

#[expect(
    clippy::print_stdout,
    reason = "the path of the kubeconfig is the output"
)]
async fn up(version: Version, controller_manager: bool) -> Result<(), Error> {
    // Before anything runs, so that a Ctrl-C during the start is not missed.
    let listen = |kind| {
        signal(kind).map_err(|source| Error::Io {
            what: "listening for signals".into(),
            source,
        })
    };
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;

    let mut builder = ControlPlane::builder(version);
    if controller_manager {
        builder = builder.controller_manager();
    }
    let plane = builder.start()?;
    println!("{}", plane.kubeconfig_path().display());
    eprintln!(
        "{} serves at {}; Ctrl-C ends it",
        plane.version(),
        plane.url()
    );
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    eprintln!("ending");
    drop(plane);
    Ok(())
}
