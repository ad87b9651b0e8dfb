int zs_placeholder;
