"""Analysis of studies: transfer, retrieval, similarity, model size; reports with figures."""
