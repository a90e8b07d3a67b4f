//! The processes of a control plane, and the watchdog that ends them when nobody else can.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::{Binary, Error, Version};

/// How long a process may take to become ready.
pub(crate) const READY: Duration = Duration::from_mins(1);

/// What the processes log when their port is taken.
pub(crate) const PORT_TAKEN: &str = "address already in use";

/// How long it may take until all threads of a process have stopped.
const PAUSED: Duration = Duration::from_secs(10);

const POLL: Duration = Duration::from_millis(20);

/// The file, in the folder of a control plane, of the ids of its running processes.
const PIDS: &str = "pids";

#[derive(Debug)]
pub(crate) struct Process {
    binary: Binary,
    version: Version,
    child: Child,
    log: PathBuf,
    /// Where in the log this process began.
    log_start: u64,
}

impl Process {
    /// Starts a process that writes its id where the watchdog finds it before it is anything
    /// else, so that at no moment it runs unknown.
    pub(crate) fn spawn(
        binary: Binary,
        version: Version,
        program: &Path,
        args: &[OsString],
        folder: &Path,
    ) -> Result<Self, Error> {
        let log = log_path(folder, binary);
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(Error::file("opening", &log))?;
        let log_start = file.metadata().map_err(Error::file("reading", &log))?.len();
        let stderr = file.try_clone().map_err(Error::file("opening", &log))?;
        let child = Command::new("/bin/sh")
            .arg("-c")
            .arg("echo $$ >>\"$0\" && exec \"$@\"")
            .arg(folder.join(PIDS))
            .arg(program)
            .args(args)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(stderr)
            .process_group(0)
            .spawn()
            .map_err(Error::file("starting", program))?;
        Ok(Self {
            binary,
            version,
            child,
            log,
            log_start,
        })
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Error> {
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|e| Error::io(format!("signalling {}", self.binary))(e.into()))
    }

    /// Stops it, and waits until all of its threads have stopped: a signal returns before that, and a
    /// busy process may answer meanwhile.
    pub(crate) fn pause(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)?;
        let failed = || Error::io(format!("stopping {}", self.binary));
        let until = Instant::now() + PAUSED;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while waitid(WaitId::Pid(Pid::from_child(&self.child)), options)
            .map_err(|e| failed()(e.into()))?
            .is_none()
        {
            if Instant::now() >= until {
                return Err(failed()(ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Asks it to end, paused or not; [`Process::wait`] sees to it that it does.
    pub(crate) fn terminate(&self) {
        let _ = self.signal(Signal::TERM);
        let _ = self.signal(Signal::CONT);
    }

    /// Waits until it has ended, and kills it when that takes longer than `grace`.
    pub(crate) fn wait(mut self, grace: Duration) {
        let until = Instant::now() + grace;
        while self.ended().is_none() {
            if Instant::now() >= until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(POLL);
        }
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Polls until `probe` succeeds, the process ends, or the deadline passes.
    pub(crate) fn ready(
        &mut self,
        mut probe: impl FnMut(&Self) -> Result<(), String>,
    ) -> Result<(), Error> {
        let until = Instant::now() + READY;
        loop {
            // The order matters: a process that could not listen has ended, and what answers
            // on its port is another.
            let found = probe(self);
            if let Some(status) = self.ended() {
                return Err(Error::Ended {
                    binary: self.binary,
                    version: self.version,
                    status: status.to_string(),
                    log: self.log_end(),
                });
            }
            let Err(last) = found else { return Ok(()) };
            if Instant::now() >= until {
                return Err(Error::NotReady {
                    binary: self.binary,
                    version: self.version,
                    after: READY,
                    last,
                    log: self.log_end(),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Whether its log, since this process began, holds the text.
    pub(crate) fn logged(&self, text: &str) -> bool {
        self.own_log().contains(text)
    }

    fn own_log(&self) -> String {
        let mut bytes = Vec::new();
        if let Ok(mut file) = fs::File::open(&self.log) {
            let _ = file.seek(SeekFrom::Start(self.log_start));
            let _ = file.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_end(&self) -> String {
        last_lines(&self.own_log(), 25)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

pub(crate) fn log_path(folder: &Path, binary: Binary) -> PathBuf {
    folder.join(format!("{}.log", binary.name()))
}

pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Writes the ids of the processes that run, so that the watchdog never kills another process
/// that has since got the id of one that ended.
pub(crate) fn write_pids(folder: &Path, processes: &[&Process]) -> Result<(), Error> {
    let ids: Vec<String> = processes.iter().map(|p| p.id().to_string()).collect();
    fs::write(folder.join(PIDS), ids.join("\n") + "\n")
        .map_err(Error::file("writing", folder.join(PIDS)))
}

/// A shell that waits for this process to end, however it does, then kills what it left
/// running and removes the folder.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    pub(crate) fn new(folder: &Path) -> Result<Self, Error> {
        // The end of the input means that this process is gone. The second round catches a
        // process that was just being started.
        let script = r#"
            trap '' HUP INT QUIT TERM
            read -r word
            [ "$word" = disarm ] && exit 0
            for round in 1 2; do
                for pid in $(cat "$0/pids"); do kill -9 "$pid"; done
                sleep 0.1
            done
            rm -rf "$0"
        "#;
        let mut shell = Command::new("/bin/sh")
            .arg("-c")
            .arg(script)
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(Error::io("starting the watchdog"))?;
        let pipe = shell.stdin.take();
        Ok(Self { shell, pipe })
    }

    /// Ends the watchdog without it doing anything.
    pub(crate) fn disarm(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            let _ = pipe.write_all(b"disarm\n");
            drop(pipe);
            let _ = self.shell.wait();
        }
    }
}

/// A port that nothing listens on now.
///
/// From below the range that the kernel gives to outgoing connections, so that none of those
/// takes it in the meantime, and never the same twice in this process.
pub(crate) fn free_port() -> Result<u16, Error> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes start far apart: the low 16 bits of the id are enough for that.
    let [low, high, ..] = std::process::id().to_le_bytes();
    let spread = u16::from_le_bytes([low, high]).wrapping_mul(7_919) % COUNT;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (spread + step) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::NoPort)
}
