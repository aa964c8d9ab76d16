use super::*;
use berth_local::images::{Image, write_index};
use tempfile::TempDir;

const ETCD: &str = "registry.k8s.io/etcd:3.6.16-0";

fn control() -> String {
    berth_reference("berth-control")
}

fn tagged(reference: &str) -> ListedImage {
    ListedImage {
        reference: reference.to_owned(),
        digest: None,
    }
}

/// Writes an archive of an image for an architecture into a folder; returns its digest.
fn write_archive(folder: &Path, reference: &str, content: &str, architecture: &str) -> String {
    fs::create_dir_all(folder).unwrap();
    let program = folder.join("program");
    fs::write(&program, content).unwrap();
    let mut image = Image::new(reference, &program, "/program");
    architecture.clone_into(&mut image.architecture);
    let archive = write_index(&[image], &folder.join(archive_name(reference))).unwrap();
    fs::remove_file(program).unwrap();
    archive.digest
}

/// A release with one image of Berth; returns its folder and the digest of the image.
fn release(dir: &TempDir) -> (PathBuf, String) {
    let folder = dir.path().join("release");
    let digest = write_archive(&folder, &control(), "first", "amd64");
    fs::write(folder.join(LIST), format!("{}@{digest}\n{ETCD}\n", control())).unwrap();
    let name = archive_name(&control());
    let sum = file_digest(&folder.join(&name)).unwrap();
    let sum = sum.trim_start_matches("sha256:");
    fs::write(folder.join(CHECKSUMS), format!("{sum}  {name}\n")).unwrap();
    (folder, digest)
}

async fn save_own(folder: &Path, artifacts: Option<&Path>) -> Result<(), Error> {
    save(vec![tagged(&control())], folder, artifacts, None, None).await
}

#[tokio::test]
async fn archives_of_a_release_are_copied_with_their_digests() {
    let dir = TempDir::new().unwrap();
    let (artifacts, digest) = release(&dir);
    let folder = dir.path().join("images");
    let expected = ListedImage {
        reference: control(),
        digest: Some(digest),
    };
    // A run without the artifacts finds what the first has written, also if that was killed before it wrote its list.
    for artifacts in [Some(artifacts.as_path()), None] {
        save_own(&folder, artifacts).await.unwrap();
        assert_eq!(read_list(&folder).unwrap(), std::slice::from_ref(&expected));
        fs::remove_file(folder.join(LIST)).unwrap();
    }
    let name = archive_name(&control());
    assert_eq!(
        fs::read(folder.join(&name)).unwrap(),
        fs::read(artifacts.join(&name)).unwrap()
    );
    assert!(!folder.join(format!("{name}.part")).exists());
}

#[tokio::test]
async fn only_the_archives_of_the_release_are_taken_from_it() {
    let dir = TempDir::new().unwrap();
    let (artifacts, _) = release(&dir);
    let folder = dir.path().join("images");
    let file = artifacts.join(archive_name(&control()));
    let complete = fs::read(&file).unwrap();

    let error = save_own(&artifacts, Some(&artifacts)).await.unwrap_err();
    assert!(
        matches!(&error, Error::Usage(text) if text.contains("another folder")),
        "{error}"
    );

    // Of another build, with a byte more behind its end, and of another version.
    write_archive(&artifacts, &control(), "second", "amd64");
    let error = save_own(&folder, Some(&artifacts)).await.unwrap_err().to_string();
    assert!(error.contains("copy the release again"), "{error}");
    fs::write(&file, [&complete[..], b"x"].concat()).unwrap();
    let error = save_own(&folder, Some(&artifacts)).await.unwrap_err().to_string();
    assert!(error.contains(CHECKSUMS), "{error}");
    fs::remove_file(&file).unwrap();
    let error = save_own(&folder, Some(&artifacts)).await.unwrap_err().to_string();
    assert!(error.contains(env!("CARGO_PKG_VERSION")), "{error}");
    assert!(!folder.join(LIST).exists());

    fs::write(&file, complete).unwrap();
    save_own(&folder, Some(&artifacts)).await.unwrap();
}

#[tokio::test]
async fn an_archive_that_is_there_is_not_pulled_again() {
    let dir = TempDir::new().unwrap();
    let (folder, etcd) = (dir.path().join("images"), vec![tagged(ETCD)]);
    let digest = write_archive(&folder, ETCD, "etcd", "amd64");
    save(etcd.clone(), &folder, None, None, None).await.unwrap();
    assert_eq!(read_list(&folder).unwrap()[0].digest, Some(digest));
    // Half of one is not taken for the image.
    let file = folder.join(archive_name(ETCD));
    let half = fs::read(&file).unwrap();
    fs::write(&file, &half[..half.len() / 2]).unwrap();
    let error = save(etcd, &folder, None, None, None).await.unwrap_err().to_string();
    assert!(error.contains("not complete") && error.contains("remove "), "{error}");
}

/// An image of a registry that does not answer, with this digest.
fn unreachable(digest: &str) -> ListedImage {
    ListedImage {
        reference: "127.0.0.1:1/etcd:3.6.16-0".into(),
        digest: Some(digest.to_owned()),
    }
}

#[tokio::test]
async fn an_archive_that_may_be_of_another_digest_is_pulled_again() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("images");
    let (wanted, other) = ("sha256:1", "sha256:2");
    let image = unreachable(wanted);
    let own_digest = write_archive(&folder, &image.reference, "etcd", "amd64");
    let name = archive_name(&image.reference);
    let (file, record) = (folder.join(&name), folder.join(format!("{name}.source")));
    let save = async |image: &ListedImage| save(vec![image.clone()], &folder, None, None, None).await;

    // Saved without a digest, and by another one: it has to be pulled, and that fails.
    assert!(save(&image).await.is_err());
    fs::write(&record, other).unwrap();
    assert!(save(&image).await.is_err());
    assert!(file.is_file() && !folder.join(LIST).exists(), "what is there stays");
    // Its own digest says the same as a record.
    save(&unreachable(&own_digest)).await.unwrap();
    fs::write(&record, format!("{wanted}\n")).unwrap();
    save(&image).await.unwrap();
    assert_eq!(read_list(&folder).unwrap()[0].digest, Some(own_digest));
}

#[test]
fn an_archive_never_has_the_record_of_another() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (partial, file, record) = (path("a.part"), path("a"), path("a.source"));
    let replace = |digest| replace_archive(&partial, &file, &record, digest);
    for digest in [Some("sha256:1"), None] {
        fs::write(&partial, "archive").unwrap();
        replace(digest).unwrap();
        assert!(file.is_file() && !partial.exists());
        let recorded = fs::read_to_string(&record).ok();
        assert_eq!(recorded.as_deref().map(str::trim), digest);
    }
    fs::write(&record, "sha256:1").unwrap();
    assert!(replace(Some("sha256:2")).is_err(), "nothing was pulled");
    assert!(!record.exists(), "the record goes before the archive");
}

#[test]
fn nothing_is_loaded_unless_all_archives_fit() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path();
    let digest = write_archive(folder, &control(), "first", "amd64");
    let list = |digest: &str| {
        vec![ListedImage {
            reference: control(),
            digest: Some(digest.to_owned()),
        }]
    };
    let check = |images: &[ListedImage], node| check_archives(images, folder, node).map_err(|error| error.to_string());
    assert_eq!(check(&list(&digest), Some("linux/amd64")), Ok(()));
    let error = check(&list(&digest), Some("linux/arm64")).unwrap_err();
    assert!(error.contains("this node is linux/arm64"), "{error}");
    let error = check(&list("sha256:1"), None).unwrap_err();
    assert!(error.contains("has the digest"), "{error}");
    let error = check(&[], None).unwrap_err();
    assert!(error.contains("lists no image"), "{error}");

    let error = check(&[list(&digest), vec![tagged(ETCD)]].concat(), None).unwrap_err();
    assert!(error.contains(ETCD) && error.contains("berth images save"), "{error}");
}

#[tokio::test]
async fn a_folder_without_a_list_is_not_loaded() {
    let dir = TempDir::new().unwrap();
    let load = async |folder: &Path| {
        load(folder, &Destination::Containerd, None)
            .await
            .unwrap_err()
            .to_string()
    };
    let error = load(dir.path()).await;
    assert!(error.contains("images.txt is missing"), "{error}");
    fs::write(dir.path().join(LIST), "../../etc/passwd\n").unwrap();
    let error = load(dir.path()).await;
    assert!(error.contains("not the name of an image"), "{error}");
    let error = load(Path::new("/tmp/a:b")).await;
    assert!(error.contains("colon"), "{error}");
}

#[tokio::test]
async fn a_command_that_fails_or_is_missing_is_named() {
    for (command, message) in [
        ("false now", "`false now` failed"),
        ("berth-no-such-program", "cannot run"),
    ] {
        let words = command.split(' ').map(ToOwned::to_owned).collect();
        let error = run_all(&[words]).await.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
