// Signatures only: see the next commit.
impl Store {
    pub fn from_url(url: &str, options: impl IntoIterator<Item = (String, String)>) -> Result<Self, InvalidStore>;
    pub async fn write<E: std::error::Error + Send + 'static>(
        &self,
        location: &str,
        entries: impl Stream<Item = Result<Entry, E>> + Send,
    ) -> Result<Written, WriteError<E>>;
    pub async fn verify(&self, location: &str, expected: &Written) -> Result<(), ReadError>;
    pub fn read(&self, location: &str, expected: &Written) -> impl Stream<Item = Result<Entry, ReadError>> + Send + use<>;
    pub async fn delete(&self, location: &str) -> Result<(), StoreError>;
    pub async fn check(&self) -> Result<(), StoreError>;
}
