//! The images that a cluster of real nodes runs and that an installation needs, by the names that upstream gives them.

use std::path::Path;

use berth_process::binaries::{self, Binary};

use super::Image;
use crate::Error;

/// etcd.
pub const ETCD: &str = "registry.k8s.io/etcd:3.6.16-0";
/// `CoreDNS`.
pub const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.14.7";
/// metrics-server.
pub const METRICS_SERVER: &str = "registry.k8s.io/metrics-server/metrics-server:v0.9.0";
/// What every pod's sandbox runs.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.1";
/// The program of test pods, with a shell.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.59";
/// The Kubernetes components of a control plane.
pub const CONTROL_PLANE: [Binary; 3] = [
    Binary::KubeApiserver,
    Binary::KubeControllerManager,
    Binary::KubeScheduler,
];

/// The name of a Kubernetes component's image in a version (`v1.37.1`).
pub fn kubernetes_reference(component: Binary, version: &str) -> String {
    format!("registry.k8s.io/{component}:{version}")
}

/// The name of the image of one of Berth's programs (`berth-control`).
pub fn berth_reference(program: &str) -> String {
    format!("ghcr.io/berth-dev/{program}:{}", env!("CARGO_PKG_VERSION"))
}

/// Berth's programs that run from images.
pub const BERTH_PROGRAMS: [&str; 4] = ["berth-control", "berth-syncer", "berth-scrub", "berth-gateway"];

/// An image that an installation of Berth needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredImage {
    /// Its name with a tag.
    pub reference: String,
    /// What runs from it.
    pub purpose: &'static str,
}

/// All images that an installation needs whose tenants may have these Kubernetes versions (`v1.37.1`), with the default values of
/// the chart and with the gateway. A test of the chart compares them with what it renders.
pub fn for_installation(kubernetes_versions: &[&str]) -> Vec<RequiredImage> {
    let image = |reference: String, purpose| RequiredImage { reference, purpose };
    let purposes = [
        "the operator, and the Jobs of the chart",
        "the agent of a tenant",
        "scrubs and validates nodes",
        "the gateway, if it is enabled",
    ];
    let mut images: Vec<RequiredImage> = BERTH_PROGRAMS
        .iter()
        .zip(purposes)
        .map(|(program, purpose)| image(berth_reference(program), purpose))
        .collect();
    images.push(image(ETCD.into(), "the datastore of the tenants"));
    images.push(image(PAUSE.into(), "placeholder pods, for autoscalers"));
    images.push(image(COREDNS.into(), "DNS of a tenant"));
    for version in kubernetes_versions {
        for component in CONTROL_PLANE {
            let reference = kubernetes_reference(component, version);
            images.push(image(reference, "control plane of a tenant"));
        }
    }
    images
}

/// The name of the file in which an image is distributed: `registry.k8s.io/etcd:3.6.16-0` is in `etcd-3.6.16-0.oci.tar`.
pub fn archive_name(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    format!("{}.oci.tar", last.replace(':', "-"))
}

/// The images that every node needs, and that of test pods.
///
/// # Errors
/// When a binary is missing.
pub fn for_workloads() -> Result<Vec<Image>, Error> {
    let agnhost = binaries::find_pinned(Binary::Agnhost)?;
    Ok(vec![
        Image::new(PAUSE, &binaries::find_pinned(Binary::Pause)?, "/pause"),
        with_shell(Image::new(AGNHOST, &agnhost, "/agnhost").with_arguments(&["pause"]))?,
    ])
}

/// Where Debian's two packages install busybox. The static one needs no libraries.
const BUSYBOX: [&str; 2] = ["/bin/busybox", "/usr/bin/busybox"];
/// The commands of busybox that the image has. Its wget is left out: it crashes where it is linked statically.
const COMMANDS: [&str; 32] = [
    "base64", "cat", "cp", "cut", "date", "dd", "echo", "env", "false", "grep", "head", "hostname", "id", "kill", "ls",
    "mkdir", "nc", "ps", "readlink", "rm", "sed", "seq", "sh", "sleep", "stat", "tail", "tar", "test", "touch", "true",
    "wc", "whoami",
];

/// The same image with a shell and what scripts need.
///
/// # Errors
/// When busybox is not installed.
pub fn with_shell(mut image: Image) -> Result<Image, Error> {
    let Some(busybox) = BUSYBOX.map(Path::new).into_iter().find(|path| path.is_file()) else {
        return Err(Error::Image {
            reference: image.reference,
            reason: "its shell, busybox, is not installed (`make prerequisites` installs it)".into(),
        });
    };
    let place = Path::new("/bin/busybox");
    image.programs.insert(place.into(), busybox.to_owned());
    let links = COMMANDS.map(|command| (Path::new("/bin").join(command), place.to_owned()));
    image.links.extend(links);
    Ok(image)
}

/// What tenants' control planes run beside Berth's own programs.
///
/// # Errors
/// When a binary is missing.
pub fn for_control_planes(kubernetes_versions: &[&str]) -> Result<Vec<Image>, Error> {
    let mut images = vec![
        in_usr_local_bin(ETCD, &binaries::find_pinned(Binary::Etcd)?, "etcd"),
        Image::new(COREDNS, &binaries::find_pinned(Binary::Coredns)?, "/coredns"),
    ];
    for version in kubernetes_versions {
        for component in CONTROL_PLANE {
            let program = binaries::find(component, version)?;
            let reference = kubernetes_reference(component, version);
            images.push(in_usr_local_bin(&reference, &program, component.name()));
        }
    }
    Ok(images)
}

/// metrics-server.
///
/// # Errors
/// When the binary is missing.
pub fn metrics_server() -> Result<Image, Error> {
    let program = binaries::find_pinned(Binary::MetricsServer)?;
    Ok(Image::new(METRICS_SERVER, &program, "/metrics-server"))
}

/// Berth's own programs, which lie in `folder`.
pub fn for_berth(folder: &Path) -> Vec<Image> {
    ["berth-control", "berth-syncer"]
        .map(|program| in_usr_local_bin(&berth_reference(program), &folder.join(program), program))
        .to_vec()
}

/// One of [`BERTH_PROGRAMS`], which lies at `path`.
pub fn for_program(program: &str, path: &Path) -> Image {
    in_usr_local_bin(&berth_reference(program), path, program)
}

/// Berth's program that cleans nodes.
pub fn for_cleaning(folder: &Path) -> Image {
    const PROGRAM: &str = "berth-scrub";
    in_usr_local_bin(&berth_reference(PROGRAM), &folder.join(PROGRAM), PROGRAM)
}

/// An image whose program is found by its name.
fn in_usr_local_bin(reference: &str, program: &Path, name: &str) -> Image {
    Image::new(reference, program, &format!("/usr/local/bin/{name}"))
}
