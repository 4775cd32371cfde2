//! Images: present or fetched, and brought along where there is no registry.

use bollard::{
    body_full,
    query_parameters::{CreateImageOptions, CreateImageOptionsBuilder},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use leasehold_actors::{
    domain::PullPolicy,
    error::{Applied, EngineError, EngineErrorKind},
};
use tokio::time::timeout;

use super::{DockerEngine, error, tiny_image};

impl DockerEngine {
    pub(super) async fn provide_image(&self, image: &str, policy: PullPolicy) -> Result<(), EngineError> {
        check_reference(image)?;
        match policy {
            PullPolicy::Always => self.pull(image).await,
            PullPolicy::Missing if self.has_image(image).await? => Ok(()),
            PullPolicy::Missing => self.pull(image).await,
            PullPolicy::Never if self.has_image(image).await? => Ok(()),
            PullPolicy::Never => Err(error::engine_error(
                "pull",
                EngineErrorKind::NoSuchImage,
                Applied::No,
                format!("image {image} is not on the node, and the pull policy is never"),
            )),
        }
    }

    /// Whether the engine has the image.
    ///
    /// # Errors
    /// [`EngineError`] when the engine does not answer.
    pub async fn has_image(&self, image: &str) -> Result<bool, EngineError> {
        let answer =
            self.ask("inspect image", self.limits().look, |client| async move {
                client.inspect_image(image).await
            })
            .await;
        match answer {
            Ok(_) => Ok(true),
            Err(error) if error.kind == EngineErrorKind::NoSuchImage => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn pull(&self, image: &str) -> Result<(), EngineError> {
        let (name, tag) = name_and_tag(image);
        let options = CreateImageOptionsBuilder::new().from_image(name).tag(tag).build();
        self.create_image(image, options, None).await.map_err(|e| error::classify_pull(image, e))?;
        // A stream that is cut off ends like one that is complete.
        if self.has_image(image).await? {
            return Ok(());
        }
        Err(error::engine_error(
            "pull",
            EngineErrorKind::PullFailed,
            Applied::No,
            format!("image {image}: the pull ended early; the image is not there"),
        ))
    }

    /// Follows the progress to its end. A pull may take hours, but not in silence.
    async fn create_image(
        &self,
        image: &str,
        options: CreateImageOptions,
        root: Option<Bytes>,
    ) -> Result<(), EngineError> {
        const OPERATION: &str = "pull";
        let client = self.agreed_client(OPERATION).await?;
        let silence = self.limits().pull_silence;
        let mut progress = std::pin::pin!(client.create_image(Some(options), root.map(body_full), None));
        loop {
            match timeout(silence, progress.next()).await {
                Ok(Some(Ok(_))) => {}
                // Failures come inside a stream that began with 200.
                Ok(Some(Err(refused))) => return Err(error::classify(OPERATION, refused)),
                Ok(None) => return Ok(()),
                Err(_) => {
                    let mut error = error::timed_out(OPERATION, silence);
                    error.message = format!("image {image}: no progress; {}", error.message);
                    return Err(error);
                }
            }
        }
    }

    /// Makes an image of a file tree (a tar archive), for engines that no registry answers.
    ///
    /// # Errors
    /// [`EngineError`] when the engine refuses it or does not answer. `changes` are Dockerfile instructions
    /// such as `STOPSIGNAL SIGINT`.
    pub async fn import_image(&self, image: &str, root: Bytes, changes: &[&str]) -> Result<(), EngineError> {
        check_reference(image)?;
        let (name, tag) = name_and_tag(image);
        let options = CreateImageOptionsBuilder::new()
            .from_src("-")
            .repo(name)
            .tag(tag)
            .changes(changes.iter().map(|&change| change.to_owned()).collect())
            .build();
        self.create_image(image, options, Some(root)).await
    }

    /// Makes a tiny image of this machine's static busybox, with a shell and the usual tools.
    ///
    /// # Errors
    /// [`TinyImageError`](super::TinyImageError) when there is no static busybox, or the engine refuses.
    pub async fn make_tiny_image(&self, image: &str, changes: &[&str]) -> Result<(), super::TinyImageError> {
        let root = tokio::task::spawn_blocking(tiny_image::busybox_tree)
            .await
            .expect("making a file tree does not panic")?;
        Ok(self.import_image(image, root.into(), changes).await?)
    }
}

/// The name goes into a URL's path, so nothing may pass that is no reference by Docker's rules.
fn check_reference(image: &str) -> Result<(), EngineError> {
    match image.parse::<oci_spec::distribution::Reference>() {
        Ok(_) => Ok(()),
        Err(reason) => Err(error::engine_error(
            "pull",
            EngineErrorKind::BadRequest,
            Applied::No,
            format!("{image:?} is no image reference: {reason}"),
        )),
    }
}

/// Docker pulls *all* tags of a name without one, so the default is spelled out. A digest counts as a tag.
fn name_and_tag(image: &str) -> (&str, &str) {
    if let Some((name, digest)) = image.split_once('@') {
        // "name:tag@digest": the digest decides.
        return (split_tag(name).0, digest);
    }
    split_tag(image)
}

fn split_tag(image: &str) -> (&str, &str) {
    match image.rsplit_once(':') {
        // A colon before a slash is the registry's port.
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registrys_port_is_no_tag() {
        for (image, name, tag) in [
            ("busybox", "busybox", "latest"),
            ("busybox:1", "busybox", "1"),
            ("localhost:5000/a/b", "localhost:5000/a/b", "latest"),
            ("localhost:5000/a/b:1", "localhost:5000/a/b", "1"),
            ("a/b@sha256:00", "a/b", "sha256:00"),
            ("localhost:5000/b:1@sha256:00", "localhost:5000/b", "sha256:00"),
        ] {
            assert_eq!(name_and_tag(image), (name, tag), "{image}");
        }
    }

    #[test]
    fn what_is_no_reference_never_reaches_a_url() {
        for image in ["", "../containers/json?x=", "a b", "a/../b", "a:b:c", "a?x=1", "a#b"] {
            let error = check_reference(image).expect_err(image);
            assert_eq!(error.kind, EngineErrorKind::BadRequest);
        }
    }
}
