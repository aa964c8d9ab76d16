//! Container runtimes that restore containers from images. An image that is marked as the checkpoint of a container names another image, whose files the
//! restored container has, and its processes are as they were: neither the list of images of a class nor the security context of the pod holds for it.
//! A runtime needs the program `criu` for that.

use super::{
    runtime_files::{Runtime, last},
    toml::Setting,
};
use crate::{Unclean, daemons::Daemon, files::resolve, node::Node, program, version::Version};

/// Where systemd looks for programs of services.
const FOLDERS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];
const CRIU: &str = "criu";

/// What lets tenants restore containers on the node; none if nothing does.
pub(super) fn find(node: &Node) -> Result<Option<String>, Unclean> {
    let runtime = Runtime::of(node);
    let daemons = runtime.daemons(node)?;
    let Some(criu) = find_criu(node, &daemons) else {
        return Ok(None);
    };
    let version = find_version(node, runtime);
    let settings = runtime.settings(node, &daemons)?;
    Ok(restores(runtime, version, &settings).then(|| describe(&criu, runtime, version)))
}

fn describe(criu: &str, runtime: Runtime, version: Option<Version>) -> String {
    let version = version.map_or_else(|| "of an unknown version".to_owned(), |version| version.to_string());
    let name = runtime.name();
    let setting = match runtime {
        Runtime::Containerd => "update to 2.2.7, 2.3.4 or later without enable_experimental_restore_via_create",
        Runtime::CriO => "set enable_criu_support = false",
    };
    format!("{criu} is installed and {name} {version} restores containers from images: remove criu, or {setting}")
}

/// Where `criu` is, in the folders in which the runtime looks for programs.
fn find_criu(node: &Node, daemons: &[Daemon]) -> Option<String> {
    let of_daemons: Vec<String> = { daemons.iter() }
        .filter_map(|daemon| daemon.variable("PATH"))
        .collect();
    let of_daemons = of_daemons.iter().flat_map(|folders| folders.split(':'));
    FOLDERS
        .into_iter()
        .chain(of_daemons.filter(|folder| folder.starts_with('/')))
        // The last part may be a link to a path that exists only on the node.
        .find(|folder| resolve(node.root(), folder).join(CRIU).symlink_metadata().is_ok())
        .map(|folder| format!("{}/{CRIU}", folder.trim_end_matches('/')))
}

/// The version of the runtime that runs; none if it does not say it.
fn find_version(node: &Node, runtime: Runtime) -> Option<Version> {
    match runtime {
        Runtime::Containerd => version_of_containerd(&program::ctr(node, &["version"]).ok()?),
        Runtime::CriO => version_of_cri_o(&program::crictl(node, &["version"]).ok()?),
    }
}

/// The version of the server in what `ctr version` prints.
fn version_of_containerd(printed: &str) -> Option<Version> {
    let (_, server) = printed.split_once("Server:")?;
    Version::parse(server.lines().find_map(|line| line.trim().strip_prefix("Version:"))?)
}

/// The version of the runtime in what `crictl version` prints.
fn version_of_cri_o(printed: &str) -> Option<Version> {
    Version::parse(
        printed
            .lines()
            .find_map(|line| line.trim().strip_prefix("RuntimeVersion:"))?,
    )
}

/// Whether a runtime of this version with these settings restores containers from images, if there is `criu`. One of an unknown version may.
fn restores(runtime: Runtime, version: Option<Version>, settings: &[Setting]) -> bool {
    match runtime {
        Runtime::Containerd => containerd_restores(version, settings),
        Runtime::CriO => cri_o_restores(version, settings),
    }
}

/// Containerd restores since 2.1.0. Since 2.2.7 and 2.3.4 it has settings for that, by which it does not unless they say so, and 2.4 cannot any more.
fn containerd_restores(version: Option<Version>, settings: &[Setting]) -> bool {
    let Some(version) = version else { return true };
    if !(Version([2, 1, 0])..Version([2, 4, 0])).contains(&version) {
        return false;
    }
    let has_settings = (Version([2, 2, 7])..Version([2, 3, 0])).contains(&version) || version >= Version([2, 3, 4]);
    if !has_settings {
        return true;
    }
    let mut of_restore = { settings.iter() }.filter(|setting| setting.is("enable_experimental_restore_via_create"));
    of_restore.any(|setting| setting.value() == "true") && last(settings, "enable_criu").as_deref() != Some("false")
}

/// CRI-O restores by default since 1.30, and only makes checkpoints by default since 1.34.14, 1.35.9 and 1.36.6. Earlier versions do not know
/// `container_level_enabled`, and do not complain about it.
fn cri_o_restores(version: Option<Version>, settings: &[Setting]) -> bool {
    let support = last(settings, "enable_criu_support");
    if support.as_deref() == Some("false") {
        return false;
    }
    let in_series = |series: u32, from: u32| {
        let (from, next) = (Version([1, series, from]), Version([1, series + 1, 0]));
        version.is_some_and(|version| (from..next).contains(&version))
    };
    let knows_level =
        in_series(34, 14) || in_series(35, 9) || version.is_some_and(|version| version >= Version([1, 36, 6]));
    match last(settings, "container_level_enabled") {
        Some(level) if knows_level => level == "checkpoint_restore",
        _ => {
            let by_default = !knows_level && version.is_none_or(|version| version >= Version([1, 30, 0]));
            by_default || support.as_deref() == Some("true")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::risks::toml;
    use std::{fs, path::Path};

    fn settings(text: &str) -> Vec<Setting> {
        toml::settings(Path::new("/etc/a.toml"), text).unwrap()
    }

    fn version(text: &str) -> Option<Version> {
        Version::parse(text)
    }

    #[test]
    fn versions_of_containerd_that_restore_are_known() {
        let on = "enable_experimental_restore_via_create = true\n";
        let both = format!("{on}enable_criu = false\n");
        for (text, config, expected) in [
            ("2.0.9", "", false),
            ("2.1.0", "", true),
            ("2.2.6", "", true),
            ("2.3.3", "", true),
            // They do not know the setting.
            ("2.3.3", "enable_criu = false", true),
            ("2.2.7", "", false),
            ("2.2.7", on, true),
            ("2.2.7", both.as_str(), false),
            ("2.3.0", "", true),
            ("2.3.4", "", false),
            ("2.3.4", "enable_criu = true", false),
            ("2.3.4", on, true),
            ("2.4.0", on, false),
            ("1.7.30", on, false),
            ("unknown", "", true),
        ] {
            let found = restores(Runtime::Containerd, version(text), &settings(config));
            assert_eq!(found, expected, "{text} {config}");
        }
    }

    #[test]
    fn versions_of_cri_o_that_restore_are_known() {
        let off = "enable_criu_support = false";
        let none = "container_level_enabled = \"none\"";
        let all = "container_level_enabled = \"checkpoint_restore\"";
        for (text, config, expected) in [
            ("1.29.9", "", false),
            ("1.29.9", "enable_criu_support = true", true),
            ("1.30.0", "", true),
            ("1.30.0", off, false),
            ("1.34.13", "", true),
            // It does not know the setting.
            ("1.34.13", none, true),
            ("1.34.14", "", false),
            ("1.34.14", all, true),
            ("1.34.14", none, false),
            ("1.34.14", "enable_criu_support = true", true),
            ("1.35.0", "", true),
            ("1.35.9", "", false),
            ("1.36.5", "", true),
            ("1.36.6", "container_level_enabled = \"checkpoint_only\"", false),
            ("1.37.0", "", false),
            ("1.37.0", all, true),
            ("unknown", "", true),
            ("unknown", off, false),
        ] {
            let found = restores(Runtime::CriO, version(text), &settings(config));
            assert_eq!(found, expected, "{text} {config}");
        }
        let later = [
            settings("enable_criu_support = true"),
            settings("enable_criu_support = false"),
        ]
        .concat();
        assert!(
            !restores(Runtime::CriO, version("1.30.0"), &later),
            "the last one counts"
        );
    }

    #[test]
    fn runtimes_say_their_versions() {
        let ctr = "Client:\n  Version:  v2.2.1\n  Revision: a\nServer:\n  Version:  v2.3.4\n  Revision: b\n  UUID: c\n";
        assert_eq!(version_of_containerd(ctr), version("2.3.4"));
        let crictl = "Version:  0.1.0\nRuntimeName:  cri-o\nRuntimeVersion:  1.34.14\nRuntimeApiVersion:  v1\n";
        assert_eq!(version_of_cri_o(crictl), version("1.34.14"));
        assert_eq!((version_of_containerd(""), version_of_cri_o("Server:")), (None, None));
    }

    #[test]
    fn criu_is_looked_for_where_the_runtime_looks_for_programs() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        let process = node.path("/proc/7");
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("cmdline"), "/opt/bin/containerd\0--config\0/a\0").unwrap();
        fs::write(process.join("environ"), "HOME=/root\0PATH=/opt/tools/:relative\0").unwrap();
        assert_eq!(find(&node).unwrap(), None);
        let install = |path: &str| node.write(path, "");
        install("/home/user/criu");
        install("/usr/bin/criu-image-streamer");
        assert_eq!(find(&node).unwrap(), None);
        install("/opt/tools/criu");
        let found = find(&node).unwrap().unwrap();
        assert!(
            found.starts_with("/opt/tools/criu is installed and containerd of an unknown version restores"),
            "{found}"
        );
        install("/usr/sbin/criu");
        let found = find(&node).unwrap().unwrap();
        assert!(found.starts_with("/usr/sbin/criu is installed"), "{found}");
    }

    #[test]
    fn settings_of_cri_o_are_found_in_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        node.write("/run/crio/crio.sock", "");
        node.write("/usr/bin/criu", "");
        node.write("/etc/crio/crio.conf", "[crio.runtime]\nenable_criu_support = true\n");
        let found = find(&node).unwrap().unwrap();
        assert!(found.contains("CRI-O of an unknown version"), "{found}");
        node.write(
            "/etc/crio/crio.conf.d/10-criu.conf",
            "[crio.runtime]\nenable_criu_support = false\n",
        );
        assert_eq!(find(&node).unwrap(), None);
    }

    #[test]
    fn settings_of_containerd_are_found_in_the_files_that_it_imports() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        let on = |node: &Node| {
            let runtime = Runtime::of(node);
            let daemons = runtime.daemons(node).unwrap();
            let settings = runtime.settings(node, &daemons).unwrap();
            restores(runtime, version("2.3.4"), &settings)
        };
        let enabled = "[plugins.'io.containerd.cri.v1.runtime']\n  enable_experimental_restore_via_create = true\n";
        for path in [
            "/etc/containerd/config.toml",
            "/etc/containerd/conf.d/50-restore.toml",
            "/etc/containerd/more.toml",
            "/opt/imports/a.toml",
            "/opt/imports/b.toml",
        ] {
            node.write(
                "/etc/containerd/config.toml",
                "imports = [\"more.toml\", \"/opt/imports/*.toml\"]\n",
            );
            assert!(!on(&node), "{path}");
            node.write(path, enabled);
            assert!(on(&node), "{path}");
            fs::remove_file(node.path(path)).unwrap();
        }
        node.write("/proc/7/cmdline", "containerd\0-c\0/srv/config.toml\0");
        node.write("/proc/7/root/srv/config.toml", enabled);
        assert!(on(&node), "the file that it was started with");
        node.write("/proc/7/root/srv/config.toml", "imports = ['beside.toml']\n");
        assert!(!on(&node));
        node.write("/srv/beside.toml", enabled);
        assert!(on(&node), "a file beside it");
        fs::remove_file(node.path("/srv/beside.toml")).unwrap();
        node.write("/proc/8/cmdline", "containerd\0");
        assert!(!on(&node));
        node.write("/proc/8/root/etc/containerd/config.toml", enabled);
        assert!(on(&node), "the usual file of a second one");
    }
}
