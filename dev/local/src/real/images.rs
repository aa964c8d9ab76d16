//! Imports images on nodes: there is no registry to pull them from.

use std::fs;
use std::time::{Duration, Instant};

use futures::future::try_join_all;

use super::{RealNodes, command};
use crate::Error;
use crate::images::{Archive, Image};

/// How long a container runtime may take until it accepts images.
const RUNTIME_READY: Duration = Duration::from_mins(3);

impl RealNodes {
    /// Makes archives of images and imports them on all the nodes at the same time. A node skips what it has.
    pub(crate) async fn import(&self, images: &[Image], nodes: &[String]) -> Result<(), Error> {
        let images = images.to_vec();
        let archives =
            tokio::task::spawn_blocking(move || images.iter().map(Image::archive).collect::<Result<Vec<_>, _>>());
        let archives = archives.await??;
        let imports = nodes.iter().map(|node| {
            let (own, node, archives) = (self.clone(), node.clone(), archives.clone());
            async move { tokio::task::spawn_blocking(move || own.import_archives(&node, &archives)).await? }
        });
        try_join_all(imports).await.map(drop)
    }

    fn import_archives(&self, name: &str, archives: &[Archive]) -> Result<(), Error> {
        let Some((place, files)) = self.nodes.iter().find(|(_, files)| files.name() == name) else {
            return Err(Error::NoRealNodes(format!("there is no real node {name}")));
        };
        // In the same folder as the images of this containerd.
        let record = files.config("images");
        let mut known = fs::read_to_string(&record).unwrap_or_default();
        let deadline = Instant::now() + RUNTIME_READY;
        for archive in archives {
            let line = format!("{} {}\n", archive.reference, archive.digest);
            if known.contains(&line) {
                continue;
            }
            let path = archive.path.display().to_string();
            let args = self.node(place, files).ctr(&["images", "import", &path])?;
            while let Err(error) = command::run("nsenter", &args) {
                if Instant::now() > deadline {
                    return Err(error);
                }
                #[expect(clippy::disallowed_methods, reason = "on a thread that may block")]
                std::thread::sleep(Duration::from_millis(100));
            }
            known.push_str(&line);
            fs::write(&record, &known).map_err(|source| Error::File {
                action: "write",
                path: record.clone(),
                source,
            })?;
        }
        Ok(())
    }
}
