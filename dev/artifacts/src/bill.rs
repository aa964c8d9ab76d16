//! The bill of materials: the crates that are in the programs, in CycloneDX 1.5.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::Error;

/// Packages of the programs of a release.
const SHIPPED: [&str; 5] = [
    "berth-cli",
    "berth-control",
    "berth-gateway",
    "berth-scrub",
    "berth-syncer",
];
/// Platforms of a release. Dependencies that only others have are left out.
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// What `cargo metadata` prints, as far as it is read.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    packages: Vec<Package>,
    resolve: Option<Resolve>,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    /// Where it comes from; none for crates of this workspace.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    /// `dev`, `build`, or none for what is linked.
    kind: Option<String>,
}

/// Asks cargo for the packages of a workspace and how they depend on each other.
pub(crate) fn ask_cargo(root: &Path) -> Result<Metadata, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command.args(["metadata", "--locked", "--format-version", "1"]);
    for platform in PLATFORMS {
        command.args(["--filter-platform", platform]);
    }
    let output = command
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .map_err(Error::file("run", &cargo))?;
    if !output.status.success() {
        return Err(Error::Command {
            command: "cargo metadata".into(),
            reason: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    serde_json::from_slice(&output.stdout).map_err(|error| Error::BillOfMaterials(error.to_string()))
}

/// SHA-256 checksums of packages by name and version, from the text of Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            package.lines().find_map(|line| {
                let value = line.strip_prefix(name)?.strip_prefix(" = \"")?;
                value.strip_suffix('"')
            })
        };
        if let (Some(name), Some(version), Some(checksum)) = (field("name"), field("version"), field("checksum")) {
            found.insert((name, version), checksum);
        }
    }
    found
}

/// The document. `timestamp` is the time of the release in RFC 3339.
pub(crate) fn build(metadata: &Metadata, lock: &str, timestamp: &str) -> Result<Value, Error> {
    let packages: BTreeMap<&str, &Package> = metadata.packages.iter().map(|one| (one.id.as_str(), one)).collect();
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    let nodes: BTreeMap<&str, &Node> = nodes.map(|node| (node.id.as_str(), node)).collect();
    let roots = find_roots(metadata)?;
    let shipped = linked_packages(&roots, &nodes);
    let checksums = checksums(lock);
    let mut components: Vec<&&Package> = shipped.iter().filter_map(|id| packages.get(id)).collect();
    components.sort_by_key(|package| reference(package));
    let version = env!("CARGO_PKG_VERSION");
    let own = format!("berth@{version}");
    let mut dependencies = vec![json!({"ref": own, "dependsOn": references(&roots, &packages)})];
    for package in &components {
        let below = nodes.get(package.id.as_str()).map(|node| linked(node));
        let below = references(&below.unwrap_or_default(), &packages);
        dependencies.push(json!({"ref": reference(package), "dependsOn": below}));
    }
    let components: Vec<Value> = components
        .into_iter()
        .map(|package| component(package, &checksums))
        .collect();
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp,
            "tools": {"components": [{"type": "application", "name": "berth-artifacts", "version": version}]},
            "component": {
                "type": "application", "bom-ref": own, "name": "berth", "version": version,
                "licenses": [{"expression": env!("CARGO_PKG_LICENSE")}],
            },
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Identifiers of the packages of the programs.
fn find_roots(metadata: &Metadata) -> Result<Vec<&str>, Error> {
    SHIPPED
        .iter()
        .map(|name| {
            let mut packages = metadata.packages.iter();
            let package = packages.find(|package| package.name == *name && package.source.is_none());
            package
                .map(|package| package.id.as_str())
                .ok_or_else(|| Error::BillOfMaterials(format!("cargo does not know the package {name}")))
        })
        .collect()
}

/// Packages that a package links: neither those of its tests nor those of its build script.
fn linked(node: &Node) -> Vec<&str> {
    let is_linked = |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
    let linked = node.deps.iter().filter(is_linked);
    linked.map(|dependency| dependency.pkg.as_str()).collect()
}

/// The packages and all that they link.
fn linked_packages<'a>(roots: &[&'a str], nodes: &BTreeMap<&str, &'a Node>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut pending = roots.to_vec();
    while let Some(id) = pending.pop() {
        if found.insert(id) {
            pending.extend(nodes.get(id).into_iter().flat_map(|node| linked(node)));
        }
    }
    found
}

/// How the document refers to packages, each once and in order.
fn references(ids: &[&str], packages: &BTreeMap<&str, &Package>) -> Vec<String> {
    let known = ids.iter().filter_map(|id| packages.get(id));
    let found: BTreeSet<String> = known.map(|package| reference(package)).collect();
    found.into_iter().collect()
}

/// How the document refers to a package.
fn reference(package: &Package) -> String {
    let Package { name, version, .. } = package;
    if package.source.is_some() {
        package_url(name, version)
    } else {
        format!("{name}@{version}")
    }
}

/// A package URL. Of the letters of a version only the plus sign is encoded.
fn package_url(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

fn component(package: &Package, checksums: &BTreeMap<(&str, &str), &str>) -> Value {
    let Package {
        name,
        version,
        license,
        description,
        source,
        ..
    } = package;
    let mut component = json!({"type": "library", "bom-ref": reference(package), "name": name, "version": version});
    if let Some(description) = description {
        component["description"] = description.split_whitespace().collect::<Vec<_>>().join(" ").into();
    }
    if let Some(checksum) = checksums.get(&(name.as_str(), version.as_str())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(license) = license {
        // The slash is how crates once wrote it.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ").replace("  ", " ")}]);
    }
    if source.is_some() {
        component["purl"] = package_url(name, version).into();
    }
    component
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

    /// What cargo says of a workspace of the programs and three crates.
    pub(crate) fn metadata() -> Metadata {
        let own = |name: &str| json!({"id": name, "name": name, "version": "0.1.0", "license": "Apache-2.0", "description": null, "source": null});
        let other = |name: &str, version: &str, license: &str| json!({"id": name, "name": name, "version": version, "license": license, "description": "A\n crate.", "source": REGISTRY});
        let mut packages: Vec<Value> = SHIPPED.iter().map(|name| own(name)).collect();
        packages.extend([
            own("berth-tests"),
            other("linked", "1.0.0+spec-1", "MIT/Apache-2.0"),
            other("below", "2.0.0", "MIT OR Apache-2.0"),
            other("of-tests", "1.0.0", "MIT"),
            other("of-builds", "1.0.0", "MIT"),
        ]);
        let dependency =
            |name: &str, kind: Value| json!({"name": name, "pkg": name, "dep_kinds": [{"kind": kind, "target": null}]});
        let mut nodes: Vec<Value> = SHIPPED
            .iter()
            .map(|name| {
                json!({"id": name, "deps": [dependency("linked", Value::Null), dependency("of-tests", "dev".into()),
                    dependency("of-builds", "build".into())]})
            })
            .collect();
        nodes.push(json!({"id": "linked", "deps": [dependency("below", Value::Null)]}));
        nodes.push(json!({"id": "below", "deps": []}));
        serde_json::from_value(json!({"packages": packages, "resolve": {"nodes": nodes}})).unwrap()
    }

    #[test]
    fn what_is_linked_is_listed_with_licence_checksum_and_dependencies() {
        let lock = "version = 4\n\n[[package]]\nname = \"below\"\nversion = \"2.0.0\"\nchecksum = \"abc\"\n\n\
                    [[package]]\nname = \"berth-cli\"\nversion = \"0.1.0\"\n";
        let bill = build(&metadata(), lock, "2026-11-23T10:00:00Z").unwrap();
        let components = bill["components"].as_array().unwrap();
        let names: Vec<&str> = components.iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!(
            names,
            [
                "berth-cli",
                "berth-control",
                "berth-gateway",
                "berth-scrub",
                "berth-syncer",
                "below",
                "linked"
            ]
        );
        let below = json!({
            "type": "library", "bom-ref": "pkg:cargo/below@2.0.0", "name": "below", "version": "2.0.0", "description": "A crate.",
            "hashes": [{"alg": "SHA-256", "content": "abc"}], "licenses": [{"expression": "MIT OR Apache-2.0"}],
            "purl": "pkg:cargo/below@2.0.0",
        });
        assert_eq!(components[5], below);
        assert_eq!(components[6]["purl"], "pkg:cargo/linked@1.0.0%2Bspec-1");
        assert_eq!(components[6]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert!(components[0].get("purl").is_none() && components[0].get("hashes").is_none());
        // Everything that depends or is depended on is a component.
        let known: BTreeSet<&str> = components.iter().filter_map(|one| one["bom-ref"].as_str()).collect();
        let dependencies = bill["dependencies"].as_array().unwrap();
        assert_eq!(dependencies.len(), components.len() + 1);
        for dependency in dependencies {
            for other in dependency["dependsOn"].as_array().unwrap() {
                assert!(known.contains(other.as_str().unwrap()), "{other}");
            }
        }
        assert_eq!(dependencies[7]["dependsOn"], json!(["pkg:cargo/below@2.0.0"]));
    }

    #[test]
    fn a_program_that_cargo_does_not_know_is_named() {
        let mut metadata = metadata();
        metadata.packages.retain(|package| package.name != "berth-scrub");
        let error = build(&metadata, "", "").unwrap_err().to_string();
        assert!(error.contains("berth-scrub"), "{error}");
    }
}
