# upload a file; run it again: curl makes another boundary, and the answer is the first one's
curl -i http://ADDRESS/documents -H 'Authorization: Bearer ada-token' -H 'Idempotency-Key: upload-1' \
    -F 'name=readme' -F 'content=@README.md'

# the same key for another file: 422
curl -i http://ADDRESS/documents -H 'Authorization: Bearer ada-token' -H 'Idempotency-Key: upload-1' \
    -F 'name=readme' -F 'content=@CHANGELOG.md'

# download it
curl -i http://ADDRESS/documents/1 -H 'Authorization: Bearer ada-token'
