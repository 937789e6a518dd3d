::core::compile_error! {
    "`tx.commit()` does not exist: the transaction is committed together with the response when the function returns; remove the call"
}
async fn create_order() {
    #[allow(dead_code, unused_variables)]
    async fn create_order(tenant: Tenant, tx: &mut Tx) -> Result<StatusCode, ApiError> {
        ::core::unimplemented!()
    }
}
