//! Bringing images onto nodes: there is no registry to pull them from.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::future::try_join_all;

use super::network::Place;
use super::place::NodePlace;
use super::{RealNodes, command};
use crate::Error;
use crate::images::{Archive, Image};

/// The label of images that are never collected and that scrub steps leave on the node.
const PINNED: &str = "io.cri-containerd.pinned=pinned";
/// How long a container runtime may take until it accepts images.
const RUNTIME_READY: Duration = Duration::from_mins(3);

impl RealNodes {
    /// Makes archives of images and imports them on the nodes, on all of them at a time. Images that a node has are skipped.
    pub(crate) async fn import(&self, images: &[Image], nodes: &[String]) -> Result<(), Error> {
        let images = images.to_vec();
        let archives =
            tokio::task::spawn_blocking(move || images.iter().map(Image::archive).collect::<Result<Vec<_>, _>>());
        let archives = archives.await??;
        let imports = nodes.iter().map(|node| {
            let (own, node, archives) = (self.clone(), node.clone(), archives.clone());
            async move { tokio::task::spawn_blocking(move || own.import_missing(&node, &archives)).await? }
        });
        try_join_all(imports).await.map(drop)
    }

    /// Imports the images of existing archives, on all nodes at a time.
    pub(crate) async fn load_archives(&self, archives: &[PathBuf]) -> Result<(), Error> {
        let loads = self.names().map(|node| {
            let (own, node, archives) = (self.clone(), node.to_owned(), archives.to_vec());
            let load = move || {
                archives
                    .iter()
                    .try_for_each(|archive| own.import_archive(&node, archive))
            };
            async move { tokio::task::spawn_blocking(load).await? }
        });
        try_join_all(loads).await.map(drop)
    }

    fn import_missing(&self, node: &str, archives: &[Archive]) -> Result<(), Error> {
        // Of this containerd, whose images are beside it.
        let record = self.find(node)?.1.config("pinned-images");
        let mut known = fs::read_to_string(&record).unwrap_or_default();
        for archive in archives {
            let line = format!("{} {}\n", archive.reference, archive.digest);
            if known.contains(&line) {
                continue;
            }
            self.import_archive(node, &archive.path)?;
            known.push_str(&line);
            fs::write(&record, &known).map_err(|source| Error::File {
                action: "write",
                path: record.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn import_archive(&self, node: &str, archive: &Path) -> Result<(), Error> {
        let (place, files) = self.find(node)?;
        let path = archive.display().to_string();
        let node = self.node(place, files);
        // Waits for the runtime first: whatever fails then is the archive's fault.
        let is_up = node.ctr(&["version"])?;
        let deadline = Instant::now() + RUNTIME_READY;
        while let Err(error) = command::run("nsenter", &is_up) {
            if Instant::now() > deadline {
                return Err(error);
            }
            #[expect(clippy::disallowed_methods, reason = "on a thread that may block")]
            std::thread::sleep(Duration::from_millis(100));
        }
        // Nobody could pull it again.
        command::run("nsenter", &node.ctr(&["images", "import", "--label", PINNED, &path])?).map(drop)
    }

    /// Runs containerd's client on a node and returns its output.
    pub(crate) fn ctr(&self, node: &str, arguments: &[&str]) -> Result<String, Error> {
        let (place, files) = self.find(node)?;
        command::run("nsenter", &self.node(place, files).ctr(arguments)?)
    }

    /// The node of this name.
    pub(super) fn find(&self, node: &str) -> Result<&(Place, NodePlace), Error> {
        let found = self.nodes.iter().find(|(_, files)| files.name() == node);
        found.ok_or_else(|| Error::NoRealNodes(format!("there is no real node {node}")))
    }
}
