::core::compile_error! {
    "`tennant` is no argument of the function; use `tenant`"
}
async fn create_order() {
    #[allow(dead_code, unused_variables)]
    async fn create_order(tenant: Tenant, tx: &mut Tx) -> StatusCode {
        StatusCode::CREATED
    }
}
