//! versitygw, a real server with the API of S3: the program of upstream, in front of a directory.

use crate::{
    helm::{cache, existing},
    processes::{ending_with_parent, spawn_logged},
    wait::{SOON, until},
};
use berth_process::free_port;
use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use tokio::{net::TcpStream, process::Child};

/// versitygw in `hack/kubernetes/versions`.
const COMPONENT: &str = "versitygw";
const VERSION: &str = "v1.8.0";
/// The credentials of its only user.
pub const KEY_ID: &str = "berth-tests-key";
/// The secret key that belongs to [`KEY_ID`].
pub const SECRET: &str = "berth-tests-secret";
const LOG: &str = "log";

/// An S3 server. It ends with this value, and with the process that started it.
pub struct Versitygw {
    /// URL of the server.
    pub endpoint: String,
    address: SocketAddr,
    process: Child,
    folder: TempDir,
}

impl Versitygw {
    /// Starts a server with a bucket on loopback, and waits until it answers.
    pub async fn start(bucket: &str) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), bucket).await
    }

    /// The same at another address of this machine.
    pub async fn start_at(address: IpAddr, bucket: &str) -> Self {
        let folder = TempDir::with_prefix("berth-versitygw-").unwrap();
        for name in ["buckets", "metadata"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::create_dir(folder.path().join("buckets").join(bucket)).unwrap();
        let address = SocketAddr::new(address, free_port().unwrap());
        let server = Self {
            endpoint: format!("http://{address}"),
            address,
            process: spawn(folder.path(), address),
            folder,
        };
        server.until_it_answers().await;
        server
    }

    /// Kills it with SIGKILL.
    pub async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Starts it again after it was killed, with what it has stored, and waits until it answers.
    pub async fn restart(&mut self) {
        self.process = spawn(self.folder.path(), self.address);
        self.until_it_answers().await;
    }

    /// All files below a folder of the buckets: objects, and what there is of uploads.
    pub fn files(&self, folder: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        add_files(&self.folder.path().join("buckets").join(folder), &mut found);
        found
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default()
    }

    async fn until_it_answers(&self) {
        until("the S3 server listens", SOON, async || {
            match TcpStream::connect(self.address).await {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("{error}; its log is\n{}", self.log())),
            }
        })
        .await;
    }
}

fn spawn(folder: &Path, address: SocketAddr) -> Child {
    let program = existing(cache().join("bin").join(COMPONENT).join(VERSION).join(COMPONENT));
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join(LOG))
        .unwrap();
    let mut server = ending_with_parent(&program);
    server
        .env("ROOT_ACCESS_KEY", KEY_ID)
        .env("ROOT_SECRET_KEY", SECRET)
        .arg(format!("--port={address}"))
        .arg("posix")
        // Not all file systems have extended attributes, in which it keeps metadata by default.
        .arg(format!("--sidecar={}", folder.join("metadata").display()))
        .arg(folder.join("buckets"));
    spawn_logged(&mut server, log)
}

fn add_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(files) = fs::read_dir(folder) else {
        return;
    };
    for file in files {
        let path = file.unwrap().path();
        if path.is_dir() {
            add_files(&path, found);
        } else {
            found.push(path);
        }
    }
}
